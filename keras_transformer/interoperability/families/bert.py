"""BERT, RoBERTa, DistilBERT and MiniLM."""

import pathlib
from collections.abc import Collection

from keras_transformer.interoperability.family import Family, block_names
from keras_transformer.interoperability.settings import (
    activation,
    epsilon,
    fixed,
    rate,
    size,
    token_id,
)
from keras_transformer.interoperability.vocabulary import (
    Languages,
    encoder_settings,
    encoder_vocabulary,
)
from keras_transformer.layers import LearnedPositionalEncoding
from keras_transformer.models import TextEncoder
from keras_transformer.types import Config
from keras_transformer_runtime.files import read_json

# Of Sentence Transformers, with the length at which its models cut texts.
SENTENCE_CONFIG = "sentence_bert_config.json"
BLOCK = {
    "attention.self.query": "self_attention.query_dense",
    "attention.self.key": "self_attention.key_dense",
    "attention.self.value": "self_attention.value_dense",
    "attention.output.dense": "self_attention.output_dense",
    "attention.output.LayerNorm": "self_attention_residual.norm",
    "intermediate.dense": "feed_forward.intermediate_dense",
    "output.dense": "feed_forward.output_dense",
    "output.LayerNorm": "feed_forward_residual.norm",
}


class Bert(Family[TextEncoder]):
    """BERT and MiniLM.

    References:
        - [Devlin et al., 2019](https://arxiv.org/abs/1810.04805)
        - [Wang et al., 2020](https://arxiv.org/abs/2002.10957)
    """

    model_type = "bert"
    architecture = "BertModel"
    model_class = TextEncoder
    settings = {
        "vocab_size": size(30522),
        "hidden_size": size(768, "hidden_dim"),
        "num_hidden_layers": size(12, "num_layers"),
        "num_attention_heads": size(12, "num_heads"),
        "intermediate_size": size(3072, "intermediate_dim"),
        "hidden_act": activation("gelu"),
        "hidden_dropout_prob": rate(0.1, "dropout"),
        "attention_probs_dropout_prob": rate(0.1, "attention_options.dropout"),
        "max_position_embeddings": size(512),
        "type_vocab_size": size(2, "num_segments", least=0),
        "layer_norm_eps": epsilon(1e-12),
        "pad_token_id": token_id(0),
        "is_decoder": fixed(False),
        "add_cross_attention": fixed(False),
        "position_embedding_type": fixed("absolute"),
    }
    design = {
        "normalize_first": False,
        "scale_embeddings": False,
        "normalize_embeddings": True,
        "feed_forward_options": {"dropout": 0.0},
    }
    layers = {
        "embeddings.word_embeddings": "token_embedding",
        "embeddings.position_embeddings": "encoding",
        "embeddings.token_type_embeddings": "segment_embedding",
        "embeddings.LayerNorm": "norm",
        **block_names("encoder.layer", "encoder", BLOCK),
        "pooler.dense": "pooler",
    }
    prefix = "bert."
    unused = r"(bert\.)?embeddings\.position_ids"
    heads = r"(cls|classifier|qa_outputs)\..*"
    first_position = 0

    def arguments(self, config: Config) -> Config:
        length = config["max_position_embeddings"] - self.first_position
        positions = LearnedPositionalEncoding(length)
        return {**super().arguments(config), "positions": positions}

    def options_of_files(self, folder: pathlib.Path, config: Config) -> Config:
        """Returns the limit of Sentence Transformers, which may be lower."""
        path = folder / SENTENCE_CONFIG
        limit = read_json(path).get("max_seq_length") if path.is_file() else None
        if not isinstance(limit, int):
            return {}
        positions = config["max_position_embeddings"] - self.first_position
        return {"max_length": min(limit, positions)}

    def options_of_tensors(self, names: Collection[str]) -> Config:
        pooler = "pooler.dense.weight"
        return {"use_pooler": bool({pooler, self.prefix + pooler} & {*names})}

    def config(self, design: Config) -> Config:
        length = design["positions"].max_length or 512
        length += self.first_position
        return {**super().config(design), "max_position_embeddings": length}

    def read_vocabulary(
        self, folder: pathlib.Path, config: Config, languages: Languages
    ) -> Config:
        loaded = self.read_tokenizer(folder, config)
        return encoder_vocabulary(config, loaded)

    def vocabulary_settings(self, model: TextEncoder) -> Config:
        return encoder_settings(model)


class Roberta(Bert):
    """RoBERTa.

    References:
        - [Liu et al., 2019](https://arxiv.org/abs/1907.11692)
    """

    model_type = "roberta"
    architecture = "RobertaModel"
    settings = {
        **Bert.settings,
        "vocab_size": size(50265),
        "pad_token_id": fixed(1),
        "bos_token_id": token_id(0),
        "eos_token_id": token_id(2),
    }
    design = {**Bert.design, "pair_separators": 2}
    prefix = "roberta."
    unused = r"(roberta\.)?embeddings\.position_ids"
    heads = r"(lm_head|classifier|qa_outputs)\..*"
    # The first position has the number 2, that of the padding plus 1.
    first_position = 2
    first_rows = {"embeddings.position_embeddings": 2}


class DistilBert(Bert):
    """DistilBERT.

    References:
        - [Sanh et al., 2019](https://arxiv.org/abs/1910.01108)
    """

    model_type = "distilbert"
    architecture = "DistilBertModel"
    settings = {
        "vocab_size": size(30522),
        "dim": size(768, "hidden_dim"),
        "n_layers": size(6, "num_layers"),
        "n_heads": size(12, "num_heads"),
        "hidden_dim": size(3072, "intermediate_dim"),
        "activation": activation("gelu"),
        "dropout": rate(0.1, "dropout"),
        "attention_dropout": rate(0.1, "attention_options.dropout"),
        "max_position_embeddings": size(512),
        "sinusoidal_pos_embds": fixed(False),
        "pad_token_id": token_id(0),
    }
    design = {**Bert.design, "num_segments": 0, "layer_norm_epsilon": 1e-12}
    layers = {
        "embeddings.word_embeddings": "token_embedding",
        "embeddings.position_embeddings": "encoding",
        "embeddings.LayerNorm": "norm",
        **block_names(
            "transformer.layer",
            "encoder",
            {
                "attention.q_lin": "self_attention.query_dense",
                "attention.k_lin": "self_attention.key_dense",
                "attention.v_lin": "self_attention.value_dense",
                "attention.out_lin": "self_attention.output_dense",
                "sa_layer_norm": "self_attention_residual.norm",
                "ffn.lin1": "feed_forward.intermediate_dense",
                "ffn.lin2": "feed_forward.output_dense",
                "output_layer_norm": "feed_forward_residual.norm",
            },
        ),
    }
    prefix = "distilbert."
    unused = r"(distilbert\.)?embeddings\.position_ids"
    heads = r"(vocab_\w+|pre_classifier|classifier|qa_outputs)\..*"

    def options_of_tensors(self, names: Collection[str]) -> Config:
        return {}

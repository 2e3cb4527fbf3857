"""Marian, such as the models of OPUS-MT."""

import pathlib

from keras_transformer.interoperability.families.bart import Bart, bart_settings
from keras_transformer.interoperability.files import in_config, read_vocabulary
from keras_transformer.interoperability.marian_vocabulary import marian_tokenizer
from keras_transformer.interoperability.parameters import LayerNames, Parameter
from keras_transformer.interoperability.settings import (
    fixed,
    flag,
    size,
    token_id,
)
from keras_transformer.interoperability.tensors import Tensors, are_sinusoids
from keras_transformer.interoperability.vocabulary import Languages
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import Seq2Seq
from keras_transformer.text import MarianTokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import check_one_of
from keras_transformer_runtime.files import checked_file, read_json, write_json

# Tables of positions, which `PositionalEncoding` computes.
POSITION_TABLES = tuple(
    f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")
)


class Marian(Bart):
    """Marian.

    References:
        - [Junczys-Dowmunt et al., 2018](https://arxiv.org/abs/1804.00344)
    """

    model_type = "marian"
    architecture = "MarianMTModel"
    settings = bart_settings(
        vocab_size=size(58101),
        decoder_vocab_size=size(None),
        share_encoder_decoder_embeddings=flag(True),
        tie_word_embeddings=flag(True),
        decoder_start_token_id=token_id(58100),
        eos_token_id=token_id(0),
        pad_token_id=token_id(58100),
        add_final_layer_norm=fixed(False),
        normalize_before=fixed(False),
        normalize_embedding=fixed(False),
    )
    design = {**Bart.design, "normalize_embeddings": False}
    aliases = {**Bart.aliases, "model.decoder.embed_tokens": ("lm_head",)}
    unused = r"model\.((encoder|decoder)\.embed_positions|shared)\.weight"
    first_rows = {}

    def complete(self, config: Config) -> Config:
        config = super().complete(config)
        shared = config["share_encoder_decoder_embeddings"]
        if shared or config["decoder_vocab_size"] is None:
            config["decoder_vocab_size"] = config["vocab_size"]
        remedy = "It must equal `pad_token_id`: outputs of Marian start with padding."
        start = in_config(config, "decoder_start_token_id")
        check_one_of([config["pad_token_id"]], remedy=remedy, **start)
        return config

    def arguments(self, config: Config) -> Config:
        length = config["max_position_embeddings"]
        shared = config["share_encoder_decoder_embeddings"]
        tying = "none"
        if config["tie_word_embeddings"]:
            tying = "all" if shared else "target"
        return {
            **super().arguments(config),
            "tie_embeddings": tying,
            "positions": PositionalEncoding(interleaved=False),
            "max_source_length": length,
            "max_target_length": length,
        }

    def config(self, design: Config) -> Config:
        tying = design["tie_embeddings"]
        return {
            **super().config(design),
            "share_encoder_decoder_embeddings": tying == "all",
            "tie_word_embeddings": tying in ("all", "target"),
        }

    def layer_names(self, model: Seq2Seq) -> LayerNames:
        names = {**self.layers, "lm_head": "output_dense"}
        if model.source_embedding is not model.target_embedding:
            del names["model.shared"]
            names["model.encoder.embed_tokens"] = "source_embedding"
            names["model.decoder.embed_tokens"] = "target_embedding"
        return names

    def adjust(self, parameter: Parameter, layer: str, config: Config) -> Parameter:
        return parameter

    def check_tensors(self, config: Config, tensors: Tensors) -> None:
        shape = (config["max_position_embeddings"], config["d_model"])
        for name in POSITION_TABLES:
            if name not in tensors.names:
                continue
            if not are_sinusoids(tensors.read((name,), shape), interleaved=False):
                raise ValueError(
                    f"{name!r} in {tensors.path.name} must hold sinusoids, as in all "
                    "models of Marian; its values differ from them."
                )

    def read_vocabulary(
        self, folder: pathlib.Path, config: Config, languages: Languages
    ) -> Config:
        sizes = {"vocabulary_size": config["vocab_size"]}
        if not config["share_encoder_decoder_embeddings"]:
            sizes = {
                "source_vocabulary_size": config["vocab_size"],
                "target_vocabulary_size": config["decoder_vocab_size"],
            }
        return {**sizes, **self._tokenizers(folder, config)}

    def _tokenizers(self, folder: pathlib.Path, config: Config) -> Config:
        """Reads the tokenizers of both sides, which have one vocabulary or two."""
        file = folder / "tokenizer_config.json"
        settings = read_json(file) if file.exists() else {}
        target = (
            "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json"
        )
        sizes = {"source": "vocab_size", "target": "decoder_vocab_size"}
        tokenizers = {}
        for side, name in {"source": "vocab.json", "target": target}.items():
            tokens = read_vocabulary(folder, name, config[sizes[side]])
            tokenizer = marian_tokenizer(checked_file(folder / f"{side}.spm"), tokens)
            _check_special_ids(tokenizer, config, name)
            tokenizers[f"{side}_tokenizer"] = tokenizer
        return tokenizers

    def vocabulary_settings(self, model: Seq2Seq) -> Config:
        return {
            "vocab_size": model.source_vocabulary_size,
            "decoder_vocab_size": model.target_vocabulary_size,
            "decoder_start_token_id": model.start_token_id,
            "eos_token_id": model.end_token_id,
            "pad_token_id": model.pad_token_id,
        }

    def write_tokenizers(self, model: Seq2Seq, folder: pathlib.Path) -> None:
        tokenizers = {
            "source": model.source_tokenizer,
            "target": model.target_tokenizer,
        }
        vocabularies = {}
        for side, tokenizer in tokenizers.items():
            if not isinstance(tokenizer, MarianTokenizer):
                raise ValueError(
                    f"`{side}_tokenizer` must be a `MarianTokenizer` for Marian; "
                    f"received a `{type(tokenizer).__name__}`."
                )
            vocabularies[side] = tokenizer.get_vocabulary()
            (folder / f"{side}.spm").write_bytes(tokenizer.proto)
        is_separate = vocabularies["source"] != vocabularies["target"]
        names = {"source": "vocab.json"}
        names |= {"target": "target_vocab.json"} if is_separate else {}
        for side, name in names.items():
            ids = {token: id for id, token in enumerate(vocabularies[side])}
            write_json(folder / name, ids)
        settings = {
            "tokenizer_class": "MarianTokenizer",
            "separate_vocabs": is_separate,
            "model_max_length": model.max_source_length or 512,
        }
        write_json(folder / "tokenizer_config.json", settings)

    def generation_settings(self, config: Config) -> Config:
        return {
            "bad_words_ids": [[config["pad_token_id"]]],
            "forced_eos_token_id": config["eos_token_id"],
            "length_penalty": 1.0,
            "max_length": config["max_position_embeddings"],
            "num_beams": 4,
        }


def _check_special_ids(
    tokenizer: MarianTokenizer, config: Config, vocabulary_file: str
) -> None:
    expected = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.end_token_id,
    }
    for setting, own in expected.items():
        if config[setting] != own:
            raise ValueError(
                f"`{setting}` in config.json must be {own}, as in "
                f"{vocabulary_file}; received `{setting}={config[setting]!r}`."
            )

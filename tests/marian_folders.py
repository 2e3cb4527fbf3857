"""Folders of small Marian models, written by transformers."""

import io
import json
import warnings

import numpy as np
import sentencepiece
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

SOURCES = ["a man sees two dogs", "two men see a dog", "the dog sees the man", "a cat"]
TARGETS = ["ein Mann sieht zwei Hunde", "zwei Männer", "der Hund", "eine Katze"]
SIZES = {
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_ffn_dim": 7,
    "decoder_ffn_dim": 7,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "max_position_embeddings": 23,
    "activation_function": "swish",
    "scale_embedding": True,
}
LIKE_OPUS = {
    "tied": {},
    "tc-big": {
        "activation_function": "relu",
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "static_position_embeddings": True,
    },
    "separate": {"share_encoder_decoder_embeddings": False},
    "untied": {"tie_word_embeddings": False, "activation_function": "gelu"},
    "all apart": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "activation_function": "relu",
        "scale_embedding": False,
    },
}


def pieces(lines, size):
    """Trains a SentencePiece model as in OPUS-MT: unigram, without a pad token."""
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=proto,
        vocab_size=size,
        hard_vocab_limit=False,
        unk_id=1,
        eos_id=0,
        bos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    return proto.getvalue()


def vocabulary(protos, languages=(">>deu<<",)):
    """Gives pieces the ids of Marian: the end and unknown tokens first."""
    tokens = ["</s>", "<unk>", *languages]
    for proto in protos:
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
        found = processor.id_to_piece(list(range(processor.get_piece_size())))
        tokens += sorted(found, reverse=True)
    return {token: i for i, token in enumerate([*dict.fromkeys(tokens), "<pad>"])}


def write_tokenizers(folder, separate=False):
    """Writes the files of the tokenizers; returns the sizes of both vocabularies."""
    folder.mkdir(parents=True)
    protos = [pieces(SOURCES, 31), pieces(TARGETS, 29)]
    for side, proto in zip(("source", "target"), protos, strict=True):
        (folder / f"{side}.spm").write_bytes(proto)
    tokens = {"vocab.json": vocabulary(protos)}
    if separate:
        tokens = {
            "vocab.json": vocabulary(protos[:1]),
            "target_vocab.json": vocabulary(protos[1:], ()),
        }
        for own in tokens.values():  # one pad id for two sizes
            middle = list(own)[17]
            own["<pad>"], own[middle] = own[middle], own["<pad>"]
    for name, own in tokens.items():
        (folder / name).write_text(json.dumps(own))
    settings = {"separate_vocabs": separate, "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sizes = [len(own) for own in tokens.values()]
    return sizes[0], sizes[-1]


def random_model(folder, seed=3, **config):
    """Writes the folder of a model with random weights; returns the model."""
    config = {**SIZES, **config}
    separate = not config.get("share_encoder_decoder_embeddings", True)
    sizes = write_tokenizers(folder, separate)
    pad = json.loads((folder / "vocab.json").read_text())["<pad>"]
    config = MarianConfig(
        vocab_size=sizes[0],
        decoder_vocab_size=sizes[1],
        pad_token_id=pad,
        decoder_start_token_id=pad,
        **config,
    )
    torch.manual_seed(seed)
    model = MarianMTModel(config).eval()
    generator = np.random.default_rng(seed)
    for name, tensor in model.named_parameters():
        if "embed_positions" not in name:
            mean = float(name.endswith("norm.weight"))
            values = generator.normal(mean, 0.3, tensor.shape)
            tensor.data = torch.tensor(values, dtype=torch.float32)
    model.tie_weights()
    model.final_logits_bias += torch.tensor(generator.normal(size=(1, sizes[1])))
    model.final_logits_bias[0, model.config.eos_token_id] = 5  # short outputs
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(folder)
    return model


def tokenizer_of(folder):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # It recommends sacremoses, which it does not use.
        return MarianTokenizer.from_pretrained(folder)


def trained_model(folder, steps=60):
    """Writes the folder of a model that translates `SOURCES` to `TARGETS`."""
    sizes = {"d_model": 18, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29}
    model = random_model(folder, **sizes, max_position_embeddings=101)
    tokenizer = tokenizer_of(folder)
    batch = tokenizer(SOURCES, text_target=TARGETS, return_tensors="pt", padding=True)
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.config.dropout = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.config.dropout = 0.1
    model.save_pretrained(folder)
    return model

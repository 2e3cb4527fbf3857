"""Folders of small models in Marian's own files, as OPUS publishes them."""

import marian_folders
import numpy as np
import sentencepiece
import yaml

WIDTH, FFN, HEADS, LAYERS = 12, 7, 3, {"encoder": 2, "decoder": 1}
SETTINGS = {
    "dec-depth": LAYERS["decoder"],
    "dim-emb": WIDTH,
    "enc-depth": LAYERS["encoder"],
    "input-types": [],
    "layer-normalization": False,
    "lemma-dim-emb": 0,
    "right-left": False,
    "skip": False,
    "tied-embeddings": False,
    "tied-embeddings-all": False,
    "tied-embeddings-src": False,
    "transformer-aan-depth": 2,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-dim-ffn": FFN,
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-guided-alignment-layer": "last",
    "transformer-heads": HEADS,
    "transformer-no-projection": False,
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-preprocess": "",
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "type": "transformer",
    "ulr": False,
    "version": "v1.9.22",
}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
}
DESIGNS = {
    # The settings of tc-big: one vocabulary, ReLU.
    "tc-big": {"tied-embeddings-all": True, "transformer-ffn-activation": "relu"},
    "separate": {"tied-embeddings": True},
    "untied": {},
    "shared input": {"tied-embeddings-src": True},
    "pre-norm": {"tied-embeddings": True, **PRE_NORM},
}


def quoted(token):
    """Returns a token as Marian's library for YAML writes it."""
    if token.isalnum() and not token.isdecimal() and token.isascii():
        return token
    escapes = {'"': '\\"', "\\": "\\\\", "\x85": "\\x85"}
    return '"' + "".join(escapes.get(letter, letter) for letter in token) + '"'


def write_vocabulary(path, tokens):
    lines = [f"{quoted(token)}: {token_id}" for token_id, token in enumerate(tokens)]
    path.write_text("\n".join([*lines, ""]), "utf-8")


def vocabulary(protos, languages=()):
    tokens = ["</s>", "<unk>", *languages]
    for proto in protos:
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
        tokens += processor.id_to_piece(list(range(processor.get_piece_size())))
    return [*dict.fromkeys(tokens)]


def random_folder(folder, name, seed=3):
    """Writes a model with random weights; returns the vocabularies of both sides."""
    settings = {**SETTINGS, **DESIGNS[name]}
    folder.mkdir(parents=True)
    sides = {
        "source": (marian_folders.SOURCES, 31),
        "target": (marian_folders.TARGETS, 29),
    }
    protos = [marian_folders.pieces(*side) for side in sides.values()]
    for side, proto in zip(sides, protos, strict=True):
        (folder / f"{side}.spm").write_bytes(proto)
    languages = [">>deu<<", ">>fra<<"]
    shared = settings["tied-embeddings-all"] or settings["tied-embeddings-src"]
    tokens = [vocabulary(protos, languages)] * 2
    names = ["opus.vocab.yml"] * 2
    if not shared:
        tokens = [vocabulary(protos[:1], languages), vocabulary(protos[1:])]
        names = ["opus.src.vocab.yml", "opus.trg.vocab.yml"]
    for file, own in zip(names, tokens, strict=True):
        write_vocabulary(folder / file, own)
    sizes = [len(own) for own in tokens]
    model = "opus.model1.npz.best-perplexity.npz"
    np.savez(folder / model, **arrays(settings, *sizes, seed))
    decoder = {"relative-paths": True, "models": [model], "vocabs": names}
    decoder |= {"beam-size": 6, "normalize": 1, "word-penalty": 0, "mini-batch": 1}
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder))
    return tokens


def arrays(settings, source_size, target_size, seed):
    """Returns random parameters under Marian's names."""
    generator = np.random.default_rng(seed)
    found = {}

    def add(name, *shape, mean=0.0):
        found[name] = generator.normal(mean, 0.3, shape).astype("float32")

    def norm(name, suffix):
        add(f"{name}_ln_scale{suffix}", 1, WIDTH, mean=1.0)
        add(f"{name}_ln_bias{suffix}", 1, WIDTH)

    suffix = "_pre" if settings["transformer-preprocess"] else ""
    for side, depth in LAYERS.items():
        for number in range(1, depth + 1):
            prefix = f"{side}_l{number}"
            for part in ("self", "context")[: 1 + (side == "decoder")]:
                for letter in "qkvo":
                    add(f"{prefix}_{part}_W{letter}", WIDTH, WIDTH)
                    add(f"{prefix}_{part}_b{letter}", 1, WIDTH)
                norm(f"{prefix}_{part}_Wo", suffix)
            add(f"{prefix}_ffn_W1", WIDTH, FFN)
            add(f"{prefix}_ffn_b1", 1, FFN)
            add(f"{prefix}_ffn_W2", FFN, WIDTH)
            add(f"{prefix}_ffn_b2", 1, WIDTH)
            norm(f"{prefix}_ffn_ffn", suffix)
        if suffix:
            norm(f"{side}_top", "")
    if settings["tied-embeddings-all"] or settings["tied-embeddings-src"]:
        add("Wemb", source_size, WIDTH)
    else:
        add("encoder_Wemb", source_size, WIDTH)
        add("decoder_Wemb", target_size, WIDTH)
    if settings["tied-embeddings-src"]:
        add("decoder_ff_logit_out_Wt", target_size, WIDTH)
    elif not (settings["tied-embeddings-all"] or settings["tied-embeddings"]):
        add("decoder_ff_logit_out_W", WIDTH, target_size)
    add("decoder_ff_logit_out_b", 1, target_size)
    found["decoder_ff_logit_out_b"] *= 3
    found["decoder_ff_logit_out_b"][0, 0] = 3  # short outputs
    text = yaml.safe_dump(settings).encode() + b"\0"
    found["special:model.yml"] = np.frombuffer(text, "int8")
    return found

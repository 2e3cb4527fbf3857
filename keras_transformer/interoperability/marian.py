"""Marian models in the form of Hugging Face, as OPUS-MT are published."""

import os
import pathlib
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.backend.quantized import check_not_quantized
from keras_transformer.export.checking import check_has_tokenizers
from keras_transformer.files import checked_file, new_folder, read_json, write_json
from keras_transformer.interoperability.files import (
    Tensors,
    find_folder,
    open_tensors,
    read_vocabulary,
)
from keras_transformer.interoperability.marian_config import (
    complete_config,
    marian_config,
    seq2seq_arguments,
)
from keras_transformer.interoperability.marian_weights import (
    BIAS,
    OUTPUT,
    SHARED,
    SOURCE,
    TARGET,
    Place,
    places,
)
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import Seq2Seq
from keras_transformer.text import MarianTokenizer

WEIGHTS = "model.safetensors"
FILES = (
    "config.json",
    WEIGHTS,
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "tokenizer_config.json",
    "vocab.json",
)
# Computed here; see `_check_tables`.
TABLES = tuple(
    f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")
)
# Half precision rounds sinusoids by less.
TABLE_TOLERANCE = 5e-3


def load_marian(folder: str | os.PathLike, revision: str | None = None) -> Seq2Seq:
    """Reads a Marian model in the form of Hugging Face, such as one of OPUS-MT.

    The `Seq2Seq` computes the logits of transformers' `MarianMTModel`, splits texts as
    its `MarianTokenizer` does, and can do all that any other can: translate, be
    trained further, be saved and exported. To find what `MarianMTModel.generate` finds,
    search as it does:

        search = BeamSearch(4, PowerLengthPenalty(1), num_hypotheses=4)

    Its best hypothesis is the first. Both divide by `length ** length_penalty`, and
    count the end token, and neither lets padding be chosen. At the length limit, where
    transformers counts the end token it sets as certain, ours has the score of the
    model. `BeamSearch()`, with the penalty of Wu et al., 2016, is as good a choice.

    The files are read as data: JSON, SentencePiece models and, by the package
    safetensors, float32, float16 or bfloat16 tensors, which become float32. `.bin`
    files are not read, as what is pickled can execute code; transformers writes the
    others:

        MarianMTModel.from_pretrained(name).save_pretrained(folder)
        MarianTokenizer.from_pretrained(name).save_pretrained(folder)

    Settings of training that this library lacks (`encoder_layerdrop`) are dropped,
    and `generation_config.json` is not read.

    Args:
        folder: the folder; or where there is none of that name, the name of a
            repository on the Hugging Face Hub, whose files the package
            huggingface_hub downloads and keeps.
        revision: branch, tag or commit of the repository, such as `"refs/pr/7"`.

    Returns:
        A `Seq2Seq` with `MarianTokenizer`s, in Keras's dtype policy.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is not in it.
        ValueError: if it holds something else than a Marian model, or parts that do
            not fit each other.

    Example:

    ```python
    model = load_marian("Helsinki-NLP/opus-mt-en-de")
    print(model.generate(texts))
    ```

    References:
        - [Junczys-Dowmunt et al., 2018](https://arxiv.org/abs/1804.00344)
        - [OPUS-MT](https://github.com/Helsinki-NLP/Opus-MT)
    """
    path = find_folder(folder, FILES, revision)
    config = complete_config(read_json(checked_file(path / "config.json")))
    _check_pickled(path)
    with open_tensors(checked_file(path / WEIGHTS)) as tensors:
        _check_sizes(config, tensors)
        model = Seq2Seq(**seq2seq_arguments(config), **_tokenizers(path, config))
        _check_tables(config, tensors)
        _assign(model, tensors)
    return model


def _assign(model: Seq2Seq, tensors: Tensors) -> None:
    """Gives the model all that the file holds, or refuses a tensor without a place."""
    rest = tensors.names - set(TABLES)
    if model.tie_embeddings != "all":
        rest -= {SHARED}  # read where a side has no own; transformers drops it too
    for place in places(model):
        if place.names == (BIAS,) and BIAS not in tensors.names:
            continue
        tensor = tensors.read(place.names, place.shape)
        place.assign(tensor)
        _check_aliases(place, tensor, rest, tensors)
        rest -= set(place.names)
    if rest:
        raise ValueError(
            f"{WEIGHTS} must hold tensors of Marian alone; it holds {min(rest)!r}, "
            "which config.json gives no place. Correct config.json, or remove the "
            "tensor."
        )


def _check_aliases(
    place: Place, tensor: np.ndarray, rest: set[str], tensors: Tensors
) -> None:
    """Makes sure that all names of a tied matrix have the same content."""
    first, *others = (name for name in place.names if name in tensors.names)
    for name in others:
        other = tensors.read((name,), place.shape) if name in rest else tensor
        if not np.array_equal(tensor, other):
            raise ValueError(
                f"{name!r} in {WEIGHTS} must equal {first!r}, as config.json ties "
                "them; it differs, and transformers would not tie them. Correct "
                "`tie_word_embeddings` and `share_encoder_decoder_embeddings` in "
                "config.json, or remove the tensor."
            )


def _check_pickled(path: pathlib.Path) -> None:
    if not (path / WEIGHTS).exists():
        raise FileNotFoundError(
            f"`folder` must hold a file {WEIGHTS!r}; received `folder={str(path)!r}`. "
            "A model published as `pytorch_model.bin` alone is pickled, which can "
            "execute code, and is not read. Convert it where you trust it: "
            "`transformers.MarianMTModel.from_pretrained(name).save_pretrained(folder)`"
            " and the same of `MarianTokenizer`; or give the `revision` of the "
            "repository that has it."
        )


def _check_sizes(config: dict[str, Any], tensors: Tensors) -> None:
    """Makes sure that no model is built that is larger than the file.

    The rest is checked weight by weight.
    """
    width = config["d_model"]
    for side in ("encoder", "decoder"):
        prefix = f"model.{side}.layers."
        layers = [name for name in tensors.names if name.startswith(prefix)]
        found = len({name[len(prefix) :].partition(".")[0] for name in layers})
        for number in range(max(found, 1)):
            query, first = f"{number}.self_attn.q_proj.weight", f"{number}.fc1.weight"
            tensors.find((prefix + query,), (width, width))
            tensors.find((prefix + first,), (config["encoder_ffn_dim"], width))
        if found != config[f"{side}_layers"]:
            raise ValueError(
                f"`{side}_layers` in config.json must be {found}, as there are in "
                f"{WEIGHTS}; received `{side}_layers={config[f'{side}_layers']}`."
            )
    tensors.find((SOURCE, SHARED, TARGET, OUTPUT), (config["vocab_size"], width))
    shape = (config["decoder_vocab_size"], width)
    tensors.find((TARGET, SHARED, OUTPUT, SOURCE), shape)


def _check_tables(config: dict[str, Any], tensors: Tensors) -> None:
    """Makes sure that stored positions are the sinusoids."""
    shape = (config["max_position_embeddings"], config["d_model"])
    for name in TABLES:
        if name in tensors.names:
            table = tensors.read((name,), shape)
            zeros = np.zeros((1, *shape), "float32")
            sinusoids = PositionalEncoding(interleaved=False, dtype="float32")(zeros)
            sinusoids = ops.convert_to_numpy(sinusoids)[0]
            if not np.allclose(table, sinusoids, atol=TABLE_TOLERANCE):
                raise ValueError(
                    f"{name!r} in {WEIGHTS} must hold sinusoids, as every model of "
                    "Marian does; it holds something else."
                )


def _tokenizers(path: pathlib.Path, config: dict[str, Any]) -> dict[str, Any]:
    """The tokenizers of both sides; they have one list of tokens or two."""
    file = path / "tokenizer_config.json"
    settings = read_json(file) if file.exists() else {}
    target = "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json"
    sizes = {"source": "vocab_size", "target": "decoder_vocab_size"}
    tokenizers = {}
    for side, name in {"source": "vocab.json", "target": target}.items():
        proto = checked_file(path / f"{side}.spm").read_bytes()
        tokens = read_vocabulary(path, name, config[sizes[side]])
        tokenizer = MarianTokenizer(proto, tokens)
        _check_special_ids(tokenizer, config, name)
        tokenizers[f"{side}_tokenizer"] = tokenizer
    return tokenizers


def _check_special_ids(
    tokenizer: MarianTokenizer, config: dict[str, Any], name: str
) -> None:
    own = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.end_token_id,
    }
    for setting, wanted in own.items():
        if config[setting] != wanted:
            raise ValueError(
                f"`{setting}` in config.json must be {wanted}, as in {name}; received "
                f"`{setting}={config[setting]!r}`."
            )


def save_marian(model: Seq2Seq, folder: str | os.PathLike) -> None:
    """Writes a model as a Marian folder of Hugging Face.

    `transformers.MarianMTModel.from_pretrained` and `MarianTokenizer.from_pretrained`
    load it, `load_marian` too. The folder is written whole or not at all. All weights
    are float32. A search is not part of it: `generation_config.json` asks for 4 beams,
    with a length penalty of 1, and for outputs without padding.

    Args:
        model: a `Seq2Seq` with `MarianTokenizer`s of the architecture of Marian's
            models: post-norm, `PositionalEncoding(interleaved=False)`, biases
            everywhere, no more than the paper has.
        folder: folder to write; it must not exist or be empty.

    Raises:
        ValueError: if the model has other tokenizers, or a part that Marian lacks.
        FileExistsError: if `folder` exists and is not an empty folder.

    Example:

    ```python
    model = load_marian("Helsinki-NLP/opus-mt-en-de")
    model.compile(keras.optimizers.Adam(1e-5), loss, jit_compile=True)
    model.fit(train.dataset, shuffle=False)
    save_marian(model, "my-en-de")
    ```
    """
    if not isinstance(model, Seq2Seq):
        raise ValueError(
            "`model` must be a `Seq2Seq`, as Marian has no ensembles; received "
            f"{model}."
        )
    check_has_tokenizers(model)
    check_not_quantized(model)
    tokenizers = {"source": model.source_tokenizer, "target": model.target_tokenizer}
    for side, tokenizer in tokenizers.items():
        if not isinstance(tokenizer, MarianTokenizer):
            raise ValueError(
                f"`{side}_tokenizer` must be a `MarianTokenizer` for Marian; received "
                f"a `{type(tokenizer).__name__}`."
            )
    config = marian_config(model)
    with new_folder(folder) as path:
        path.mkdir()
        _write_tokenizers(path, config, tokenizers)
        _write_settings(path, config)
        _write_weights(path / WEIGHTS, model)


def _write_tokenizers(
    path: pathlib.Path, config: dict[str, Any], tokenizers: dict[str, MarianTokenizer]
) -> None:
    vocabularies = {
        side: tokenizer.get_vocabulary() for side, tokenizer in tokenizers.items()
    }
    separate = vocabularies["source"] != vocabularies["target"]
    for side, tokenizer in tokenizers.items():
        (path / f"{side}.spm").write_bytes(tokenizer.proto)
        if side == "source" or separate:
            name = "vocab.json" if side == "source" else "target_vocab.json"
            ids = {token: id for id, token in enumerate(vocabularies[side])}
            write_json(path / name, ids)
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "model_max_length": config["max_position_embeddings"],
    }
    write_json(path / "tokenizer_config.json", settings)


def _write_settings(path: pathlib.Path, config: dict[str, Any]) -> None:
    special = {
        name: config[name]
        for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    }
    search = {
        **special,
        "bad_words_ids": [[config["pad_token_id"]]],
        "forced_eos_token_id": config["eos_token_id"],
        "length_penalty": 1.0,
        "max_length": config["max_position_embeddings"],
        "num_beams": 4,
    }
    write_json(path / "generation_config.json", search)
    architecture = {"architectures": ["MarianMTModel"], "dtype": "float32"}
    write_json(path / "config.json", {**architecture, **config})


def _write_weights(path: pathlib.Path, model: Seq2Seq) -> None:
    from safetensors.numpy import save_file

    tensors = {place.names[0]: place.tensor() for place in places(model)}
    save_file(tensors, path, metadata={"format": "pt"})

"""Loads Marian models, such as those of OPUS-MT."""

import contextlib
import os
import pathlib

import numpy as np

from keras_transformer.backend.pytorch_file import read_pytorch_file
from keras_transformer.export.marian_format import (
    BIAS,
    OUTPUT,
    SHARED,
    SOURCE,
    TARGET,
    WEIGHTS_FILE,
    MappedWeight,
    mapped_weights,
)
from keras_transformer.interoperability.files import (
    FALLBACKS,
    PICKLED_WEIGHTS,
    find_folder,
    read_vocabulary,
)
from keras_transformer.interoperability.marian_config import (
    complete_config,
    seq2seq_arguments,
)
from keras_transformer.interoperability.marian_npz import (
    DECODER_FILE,
    count_layers,
    read_own_files,
)
from keras_transformer.interoperability.marian_vocabulary import marian_tokenizer
from keras_transformer.interoperability.tensors import (
    PyTorchTensors,
    Tensors,
    are_sinusoids,
    open_safetensors,
)
from keras_transformer.models import Seq2Seq
from keras_transformer.text import MarianTokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.files import checked_file, read_json

FILES = (
    "config.json",
    WEIGHTS_FILE,
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "tokenizer_config.json",
    "vocab.json",
)
# Tables of positions, which `PositionalEncoding` computes.
POSITION_TABLES = tuple(
    f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")
)


def load_marian(folder: str | os.PathLike, revision: str | None = None) -> Seq2Seq:
    """Loads a Marian model, such as one of OPUS-MT.

    The folder has the form of Hugging Face, with `config.json`, or Marian's own files
    as OPUS publishes them: `decoder.yml`, an npz file, `vocab.yml` and `source.spm`.
    From Marian's own files, the `Seq2Seq` computes what CTranslate2 computes after its
    `OpusMTConverter`.

    In the form of Hugging Face, it computes the same logits as transformers'
    `MarianMTModel` and tokenizes texts as its `MarianTokenizer` does. It can be used
    like any other `Seq2Seq`: to translate, to train further, to save and to export. The
    following search finds the hypotheses of `MarianMTModel.generate`:

        search = BeamSearch(4, PowerLengthPenalty(1), num_hypotheses=4)

    Its first hypothesis is the best one. Both searches divide scores by
    `length ** length_penalty`, count the end token, and never choose the padding token.
    At the length limit, transformers scores the forced end token with probability 1;
    this library scores it with the probability of the model. The default search
    `BeamSearch()`, with the length penalty of Wu et al., 2016, is an equally good
    choice.

    Files are read as data, and nothing in them is executed: JSON, SentencePiece models
    and tensors in float32, float16 or bfloat16, which are converted to float32. The
    tensors are read from `model.safetensors`, which requires the package safetensors.
    If there is none, they are read from `pytorch_model.bin`, which requires PyTorch. A
    `pytorch_model.bin` with anything but tensors raises an error.

    Training settings that this library does not support (`encoder_layerdrop`) and
    `generation_config.json` are ignored.

    Args:
        folder: path of a folder. If there is no such folder, the name of a repository
            on the Hugging Face Hub, whose files the package huggingface_hub downloads
            and caches.
        revision: branch, tag or commit of the repository, such as `"refs/pr/7"`.

    Returns:
        A `Seq2Seq` with `MarianTokenizer`s, in Keras's global dtype policy.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is missing.
        ModuleNotFoundError: if a package that reads a file is missing.
        ValueError: if the folder does not contain a Marian model, or its files
            contradict each other.

    Example:

    ```python
    model = load_marian("Helsinki-NLP/opus-mt-en-de")
    print(model.generate(texts))
    ```

    References:
        - [Junczys-Dowmunt et al., 2018](https://arxiv.org/abs/1804.00344)
        - [OPUS-MT](https://github.com/Helsinki-NLP/Opus-MT)
    """
    path = find_folder(folder, FILES, revision, FALLBACKS)
    if (path / DECODER_FILE).is_file() and not (path / "config.json").exists():
        return _load_own_files(path)
    config = complete_config(read_json(checked_file(path / "config.json")))
    with _open_tensors(path) as tensors:
        _check_sizes(config, tensors)
        model = Seq2Seq(**seq2seq_arguments(config), **_tokenizers(path, config))
        _check_position_tables(config, tensors)
        _assign(model, tensors)
    return model


def _load_own_files(folder: pathlib.Path) -> Seq2Seq:
    """Loads the files that Marian itself writes and reads."""
    arguments, sizes, tensors = read_own_files(folder)
    _check_sizes(sizes, tensors)
    model = Seq2Seq(**arguments)
    _assign(model, tensors)
    return model


def _assign(model: Seq2Seq, tensors: Tensors) -> None:
    """Sets all weights; raises `ValueError` if a tensor belongs to no weight."""
    unread = tensors.names - set(POSITION_TABLES)
    if model.tie_embeddings != "all":
        # The shared embedding is unused where both sides have their own; transformers
        # ignores it too.
        unread -= {SHARED}
    for weight in mapped_weights(model):
        if weight.names == (BIAS,) and BIAS not in tensors.names:
            continue
        tensor = tensors.read(weight.names, weight.shape)
        weight.assign(tensor)
        _check_tied(weight, tensor, unread, tensors)
        unread -= set(weight.names)
    if unread:
        raise ValueError(
            f"{tensors.path.name} must hold only tensors of Marian; it holds "
            f"{min(unread)!r}, which no weight of config.json's architecture has. "
            "Correct config.json, or remove the tensor."
        )


def _check_tied(
    weight: MappedWeight, tensor: np.ndarray, unread: set[str], tensors: Tensors
) -> None:
    """Raises `ValueError` if two names of a tied matrix have different values."""
    first, *others = (name for name in weight.names if name in tensors.names)
    for name in others:
        other = tensors.read((name,), weight.shape) if name in unread else tensor
        if not np.array_equal(tensor, other):
            raise ValueError(
                f"{name!r} in {tensors.path.name} must equal {first!r}, as config.json "
                "ties them; their values differ, and transformers would not tie them. "
                "Correct `tie_word_embeddings` and `share_encoder_decoder_embeddings` "
                "in config.json, or remove the tensor."
            )


def _open_tensors(folder: pathlib.Path) -> contextlib.AbstractContextManager[Tensors]:
    """Opens the file with the weights, preferably the one of safetensors."""
    if (folder / WEIGHTS_FILE).is_file():
        return open_safetensors(folder / WEIGHTS_FILE)
    if (folder / PICKLED_WEIGHTS).is_file():
        path = folder / PICKLED_WEIGHTS
        return contextlib.nullcontext(PyTorchTensors(path, read_pytorch_file(path)))
    raise FileNotFoundError(
        f"`folder` must have the file {WEIGHTS_FILE} or {PICKLED_WEIGHTS}; there is "
        f"none in {folder}."
    )


def _check_sizes(config: Config, tensors: Tensors) -> None:
    """Raises `ValueError` if the model, which is not built, is larger than the file."""
    # `_assign` checks the other shapes.
    width = config["d_model"]
    for side in ("encoder", "decoder"):
        prefix = f"model.{side}.layers."
        count = count_layers(tensors.names, side)
        for number in range(max(count, 1)):
            query, first = f"{number}.self_attn.q_proj.weight", f"{number}.fc1.weight"
            tensors.find((prefix + query,), (width, width))
            tensors.find((prefix + first,), (config["encoder_ffn_dim"], width))
        name = f"{side}_layers"
        if count != config[name]:
            raise ValueError(
                f"`{name}` in config.json must be {count}, as in {tensors.path.name}; "
                f"received `{name}={config[name]}`."
            )
    tensors.find((SOURCE, SHARED, TARGET, OUTPUT), (config["vocab_size"], width))
    shape = (config["decoder_vocab_size"], width)
    tensors.find((TARGET, SHARED, OUTPUT, SOURCE), shape)


def _check_position_tables(config: Config, tensors: Tensors) -> None:
    """Raises `ValueError` if stored tables of positions are not the sinusoids."""
    shape = (config["max_position_embeddings"], config["d_model"])
    for name in POSITION_TABLES:
        if name not in tensors.names:
            continue
        if not are_sinusoids(tensors.read((name,), shape), interleaved=False):
            raise ValueError(
                f"{name!r} in {tensors.path.name} must hold sinusoids, as in all "
                "models of Marian; its values differ from them."
            )


def _tokenizers(folder: pathlib.Path, config: Config) -> dict[str, MarianTokenizer]:
    """Reads the tokenizers of both sides, which have one vocabulary or two."""
    file = folder / "tokenizer_config.json"
    settings = read_json(file) if file.exists() else {}
    target = "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json"
    sizes = {"source": "vocab_size", "target": "decoder_vocab_size"}
    tokenizers = {}
    for side, name in {"source": "vocab.json", "target": target}.items():
        tokens = read_vocabulary(folder, name, config[sizes[side]])
        tokenizer = marian_tokenizer(checked_file(folder / f"{side}.spm"), tokens)
        _check_special_ids(tokenizer, config, name)
        tokenizers[f"{side}_tokenizer"] = tokenizer
    return tokenizers


def _check_special_ids(
    tokenizer: MarianTokenizer, config: Config, vocabulary_file: str
) -> None:
    expected = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.end_token_id,
    }
    for setting, token_id in expected.items():
        if config[setting] != token_id:
            raise ValueError(
                f"`{setting}` in config.json must be {token_id}, as in "
                f"{vocabulary_file}; received `{setting}={config[setting]!r}`."
            )

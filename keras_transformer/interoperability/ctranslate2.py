"""Loads Transformers of CTranslate2."""

import os

from keras_transformer.export.model_support import Tokenizers
from keras_transformer.interoperability.ctranslate2_architecture import (
    BIAS,
    OUTPUT,
    causal_lm_arguments,
    seq2seq_arguments,
)
from keras_transformer.interoperability.ctranslate2_file import (
    DECODER_ONLY,
    ENCODER_DECODER,
    SIDES,
    VERSION,
    Variables,
    older_config,
    read_variables,
)
from keras_transformer.interoperability.ctranslate2_vocabulary import (
    MATRICES,
    decoder_only_vocabulary,
    encoder_decoder_vocabularies,
)
from keras_transformer.interoperability.ctranslate2_weights import assign
from keras_transformer.interoperability.files import find_folder
from keras_transformer.models import CausalLM, Seq2Seq
from keras_transformer.text import Tokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.files import checked_file, read_json

FILES = (
    "config.json",
    "model.bin",
    *(f"{name}.{kind}" for name in MATRICES for kind in ("json", "txt")),
    *(f"{side}.{kind}" for side in ("source", "target") for kind in ("model", "spm")),
    *("tokenizer.model", "vocab.json", "merges.txt"),
)
# Settings without an effect: of absent parts, of alignments, of a single source.
IGNORED = {
    "alignment_heads",
    "alignment_layer",
    "decoder/alibi",
    # Softmax does not depend on a term that all keys share.
    "decoder/alibi_use_positive_positions",
    "decoder/alignment_heads",
    "decoder/alignment_layer",
    "decoder/multi_query_attention",
    "decoder/scale_alibi",
    "decoder/start_from_zero_embedding",
    "embeddings_merge",
    "encoder/embeddings_merge",
    "encoder/multi_query_attention",
    "unk_token",
    "with_relative_position",
    "with_source_eos",
}
# Those of them that must be false.
FLAGS = {
    "decoder/alibi",
    "decoder/multi_query_attention",
    "decoder/scale_alibi",
    "decoder/start_from_zero_embedding",
    "encoder/multi_query_attention",
    "with_relative_position",
}
# Parts in place of others, whose absence would otherwise be the error.
REPLACEMENTS = {"input_layer_norm", "shared_layer_norm", "project_in"}


def load_ctranslate2(
    folder: str | os.PathLike,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    tokenizer: Tokenizer | None = None,
) -> Seq2Seq | CausalLM:
    """Loads a Transformer of CTranslate2.

    An encoder-decoder model, for `ctranslate2.Translator`, becomes a `Seq2Seq`. A
    decoder-only model, for `ctranslate2.Generator`, such as GPT-2, becomes a
    `CausalLM`. The file `model.bin`, in version 2 to 6 of CTranslate2's format, is read
    as data. The package ctranslate2 is not required. Weights in 32, 16 or 8 bits are
    converted to float32. The model computes the same logits as CTranslate2. A part of
    the model that this library does not support, such as source factors, interleaved
    rotary positions or parallel residual connections, raises an error with its name.
    CTranslate2 does not store dropout rates; the rate is 0.1, the default of `Seq2Seq`
    and `CausalLM`.

    A table of positions that equals the sinusoids of the original Transformer, in
    either order, becomes a `PositionalEncoding`. Any other table becomes a
    `LearnedPositionalEncoding`. The lengths of the tables become `max_source_length`
    and `max_target_length`, or `max_length`.

    If the model has no padding token, or decodes from a zero embedding, as models
    converted from Marian do, a padding token is added. It is never chosen.

    Texts require tokenizers. By default, they are read from the folder if their pieces
    match the vocabularies: from `source.model` and `target.model` (or `.spm`); for a
    `CausalLM` from `tokenizer.model`, or from `vocab.json` and `merges.txt` of GPT-2.
    Folders that `model.export` has written have them if the tokenizers are
    SentencePiece models. Otherwise the model accepts only token ids.

    Args:
        folder: path of a folder. If there is no such folder, the name of a repository
            on the Hugging Face Hub, whose files the package huggingface_hub downloads
            and caches.
        source_tokenizer: tokenizer of the source texts of an encoder-decoder model.
        target_tokenizer: tokenizer of its target texts. `None` = `source_tokenizer`.
        tokenizer: tokenizer of the texts of a decoder-only model.

    Returns:
        A `Seq2Seq` or a `CausalLM`, in Keras's global dtype policy.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is missing.
        ValueError: if the folder contains another kind of model, a part that this
            library does not support, or a damaged file; or if a vocabulary or a
            tokenizer does not match the model.

    Example:

    ```python
    model.export("en-de", format="ctranslate2")
    loaded = load_ctranslate2("en-de")
    outputs = loaded.generate(texts, max_length=9)
    print(outputs == model.generate(texts, max_length=9))  # True
    ```

    References:
        - [CTranslate2](https://opennmt.net/CTranslate2/), version 4.8, which reads the
          same older versions of its format
    """
    if source_tokenizer is None and target_tokenizer is not None:
        raise ValueError(
            "`source_tokenizer` must be given with `target_tokenizer`; received "
            "`source_tokenizer=None`. Pass both, or one for both sides as "
            "`source_tokenizer`."
        )
    path = find_folder(folder, FILES)
    variables = read_variables(checked_file(path / "model.bin"))
    if variables.name not in SIDES:
        raise ValueError(
            "`folder` must hold an encoder-decoder Transformer, a "
            f"{ENCODER_DECODER!r}, or a decoder-only Transformer, a {DECODER_ONLY!r}; "
            f"received a {variables.name!r}."
        )
    if variables.version == VERSION:
        config = read_json(checked_file(path / "config.json"))
    else:
        config = older_config(variables)
    _check_parts(variables, config)
    epsilon = config.get("layer_norm_epsilon")
    model: Seq2Seq | CausalLM
    if variables.name == ENCODER_DECODER:
        _check_none("tokenizer", tokenizer, "`source_tokenizer`", variables)
        pair = None
        if source_tokenizer is not None:
            pair = Tokenizers(source_tokenizer, target_tokenizer or source_tokenizer)
        arguments = seq2seq_arguments(variables, epsilon)
        arguments |= encoder_decoder_vocabularies(path, config, variables, pair)
        model = Seq2Seq(**arguments, output_bias=_output_bias(arguments, variables))
    else:
        _check_none("source_tokenizer", source_tokenizer, "`tokenizer`", variables)
        arguments = causal_lm_arguments(variables, epsilon)
        arguments |= decoder_only_vocabulary(path, config, variables, tokenizer)
        model = CausalLM(**arguments, output_bias=_output_bias(arguments, variables))
    assign(model, variables)
    _check_all_read(variables)
    return model


def _check_none(
    name: str, received: Tokenizer | None, other: str, variables: Variables
) -> None:
    """Raises `ValueError` for a tokenizer of the other kind of model."""
    if received is not None:
        raise ValueError(
            f"`{name}` must be `None` for a {variables.name!r}; received a "
            f"{type(received).__name__}. Pass it as {other}."
        )


def _output_bias(arguments: Config, variables: Variables) -> bool | str:
    """Returns whether the model has a bias; a frozen one excludes added tokens."""
    if BIAS in variables:
        return True
    size = arguments.get("target_vocabulary_size") or arguments["vocabulary_size"]
    return "frozen" if size > variables.shape(OUTPUT)[0] else False


def _check_parts(variables: Variables, config: Config) -> None:
    """Raises `ValueError` for a part that replaces another, or for packed weights."""
    for name in variables.names():
        if REPLACEMENTS.intersection(name.split("/")):
            raise _unsupported(name)
    if config.get("quantization_type"):
        raise _unsupported("quantization_type")


def _check_all_read(variables: Variables) -> None:
    """Raises `ValueError` if the model has a variable that this library ignores."""
    for name in variables.unread():
        if name not in IGNORED or (name in FLAGS and variables.scalar(name)):
            raise _unsupported(name)


def _unsupported(name: str) -> ValueError:
    return ValueError(
        f"`folder` must hold a model without {name!r}, which this library does not "
        "support; received a model with it."
    )

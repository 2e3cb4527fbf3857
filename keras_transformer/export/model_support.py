"""The models and parts of models that each export format supports."""

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from keras_transformer.models import CausalLM, GenerativeModel, Seq2Seq

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

# Names of the formats in error messages.
FORMAT_NAMES = {
    "saved_model": "a SavedModel",
    "ctranslate2": "CTranslate2",
    "onnx": "ONNX",
}
# Token of a row of an embedding that has no token in the vocabulary.
UNUSED_TOKEN = "<unused {}>"

Transformer: TypeAlias = Seq2Seq | CausalLM
SourceKind: TypeAlias = Literal["texts", "token_ids", "arrays"]


def check_transformer(model: object, format: str) -> Transformer:
    """Returns the model as a `Transformer`, or raises `ValueError`."""
    if isinstance(model, Seq2Seq | CausalLM):
        _check_token_ids(model, format)
        forced = getattr(model, "forced_first_token_id", None)
        name = "forced_first_token_id"
        require_supported(format, forced is None, name, forced, "`None`")
        return model
    raise _wrong_class(
        model, "a single Transformer, such as a `Seq2Seq` or a `CausalLM`,", format
    )


def require_supported(
    format: str, supported: bool, name: str, received: object, expected: str
) -> None:
    """Raises `ValueError` if a format does not support an argument of the model."""
    if not supported:
        raise ValueError(
            f"`{name}` must be {expected} for {FORMAT_NAMES[format]}; received "
            f"`{name}={received!r}`. Use `format='saved_model'`, which supports any "
            "model, or train a model that the format supports."
        )


def require_no_pattern(format: str, model: Transformer) -> None:
    """Raises `ValueError` if the self-attention of a block has a pattern."""
    for name in ("pattern", "sliding_window"):
        value = model.attention_options.get(name)
        each = value if isinstance(value, list | tuple) else [value]
        supported = all(item is None for item in each)
        require_supported(format, supported, name, value, "`None`")


def _check_token_ids(model: GenerativeModel, format: str) -> None:
    """Raises `ValueError` if the sources of a model are arrays."""
    if model.source_spec is not None:
        raise ValueError(
            "`source_embedding` must be `None` for "
            f"{FORMAT_NAMES[format]}, whose sources are token ids; received a model "
            "whose sources are arrays. Use `format='saved_model'`."
        )


def _wrong_class(model: object, expected: str, format: str) -> ValueError:
    return ValueError(
        f"`model` must be {expected} for {FORMAT_NAMES[format]}; received a model of "
        f"class `{type(model).__name__}`. Use `format='saved_model'`, which supports "
        "any model."
    )


class Tokenizers(NamedTuple):
    """The tokenizers of the sources and the targets of a model."""

    source: "Tokenizer"
    target: "Tokenizer"


def tokenizers_of(model: GenerativeModel) -> Tokenizers:
    """Returns the tokenizers of a model, or raises `ValueError` if it has none."""
    if model.source_tokenizer is None or model.target_tokenizer is None:
        raise ValueError(
            "`model` must have tokenizers to be exported; received a model without "
            "`source_tokenizer`. Pass tokenizers to the constructor of the model."
        )
    return Tokenizers(model.source_tokenizer, model.target_tokenizer)


def source_kind(model: GenerativeModel) -> SourceKind:
    """Returns what the sources of the SavedModel of a model are.

    They are token ids if the model has no tokenizers, or one of them runs on the host.
    """
    if model.source_spec is not None:
        return "arrays"
    tokenizers = (model.source_tokenizer, model.target_tokenizer)
    in_graph = all(each is not None and each.in_graph for each in tokenizers)
    return "texts" if in_graph else "token_ids"


def array_input(model: GenerativeModel) -> tuple[tuple[int | None, ...], str]:
    """Returns the shape and the dtype of a source of a model that takes arrays."""
    spec = model.source_spec
    if spec is None or spec.shape is None or spec.dtype is None:
        raise ValueError(
            "`source_embedding` must have an input of known shape and dtype for a "
            f"SavedModel; received a layer of the inputs `{spec}`. Pass "
            "`keras.Sequential([keras.Input(shape, dtype=dtype), layer])`."
        )
    return spec.shape, spec.dtype


def tokenizers_to_write(model: GenerativeModel) -> "dict[str, Tokenizer]":
    """Returns the tokenizers of a model by the names of their files."""
    tokenizers = tokenizers_of(model)
    if isinstance(model, CausalLM):
        return {"tokenizer": tokenizers.target}
    return tokenizers._asdict()


def embedding_vocabulary(tokenizer: "Tokenizer", size: int) -> list[str]:
    """Returns a token for each row of an embedding; the last ones can be unused."""
    tokens = tokenizer.get_vocabulary()
    return [*tokens, *map(UNUSED_TOKEN.format, range(len(tokens), size))]

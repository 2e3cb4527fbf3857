"""Tokenizers as attributes of models."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


def tokenizer_attribute() -> "Tokenizer | None":
    """Returns an attribute for a tokenizer, for the body of a class of models.

    The tokenizer belongs to the configuration of a model. It is a Keras layer, but not
    one of the model: it is not in `layers`, `summary` and the files of weights. The
    class is derived from `TokenizerOwner`. The attribute is `None` unless it is set.
    """
    return cast("Tokenizer | None", _TokenizerAttribute())


class _TokenizerAttribute:
    """See `tokenizer_attribute`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, model: object | None, owner: type) -> object:
        if model is None:
            return self
        return getattr(vars(model).get("_tokenizers"), self._name, None)

    def __set__(self, model: object, tokenizer: object) -> None:
        if "_tokenizers" not in vars(model):
            if tokenizer is None:
                return
            from keras_transformer.text.tokenizer import TrackedTokenizers

            setattr(model, "_tokenizers", TrackedTokenizers())  # noqa: B010 (an object)
        setattr(vars(model)["_tokenizers"], self._name, tokenizer)


class TokenizerOwner:
    """Base class of models with attributes for tokenizers."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(getattr(type(self), name, None), _TokenizerAttribute):
            object.__setattr__(self, name, value)  # without Keras's tracking
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        """Returns the names of the attributes in which Keras looks for weights."""
        kind, names = type(self), super().__dir__()
        return [
            name
            for name in names
            if not isinstance(getattr(kind, name, None), _TokenizerAttribute)
        ]

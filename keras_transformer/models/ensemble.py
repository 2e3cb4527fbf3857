"""Several models that decode together."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.models.decoding_methods import DecodingMethods
from keras_transformer.models.seq2seq import Seq2Seq

SHARED = (
    "source_vocabulary_size",
    "target_vocabulary_size",
    "pad_token_id",
    "start_token_id",
    "end_token_id",
)


@keras.saving.register_keras_serializable("keras_transformer")
class Ensemble(DecodingMethods, keras.Model):
    """Trained models that share a vocabulary, and decode as one.

    The probability of a token is the mean of the models' own. Everything that decodes a
    `Seq2Seq` decodes an ensemble: every search with every option, `score`, `align`,
    `stream`, `save` and `export` to a SavedModel. It costs what its models cost
    together.

    Args:
        models: list of `Seq2Seq`, of whatever sizes and designs, such as the same
            recipe from several seeds.
        **kwargs: `name`, `dtype` and the other arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of int tensors, as of `Seq2Seq`.
        training: whether dropout is applied.

    Returns:
        Log-probabilities, float32 `(batch, target_length, vocabulary_size)`: logits
        whose softmax is the mean of the models'.

    Raises:
        ValueError: if there is no model, or they do not share vocabularies and special
            tokens.

    Example:

    ```python
    ensemble = Ensemble([model, model_of_another_seed])
    ensemble.generate(["A man sleeps."])
    ```

    References:
        - [Sutskever et al., 2014](https://arxiv.org/abs/1409.3215), section 3.6
    """

    def __init__(self, models: Sequence[Seq2Seq], **kwargs: Any):
        super().__init__(**kwargs)
        _check(models)
        self.models = list(models)
        first = self.models[0]
        for name in SHARED:
            setattr(self, name, getattr(first, name))
        self.source_tokenizer = first.source_tokenizer
        self.target_tokenizer = first.target_tokenizer
        self.max_source_length = _least("max_source_length", self.models)
        self.max_target_length = _least("max_target_length", self.models)
        self._keep_what_is_compiled()
        self.built = True

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> Any:
        return _mean([model(inputs, training=training) for model in self.models])

    def start_decoding(
        self,
        encoder_token_ids: Any,
        num_beams: int,
        max_length: Any,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        """Makes the states of all models; see `Seq2Seq.start_decoding`."""
        arguments = (encoder_token_ids, num_beams, max_length, return_attention)
        return _together([model.start_decoding(*arguments) for model in self.models])

    def decode_step(
        self, token_ids: Any, index: Any, state: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Computes the log-probabilities of the next tokens; see `Seq2Seq`."""
        pairs = zip(self.models, state["models"], strict=True)
        steps = [model.decode_step(token_ids, index, own) for model, own in pairs]
        logits, states = zip(*steps, strict=True)
        return _mean(logits), _together(list(states))

    def reorder_state(self, state: dict[str, Any], parents: Any) -> dict[str, Any]:
        """Lets each beam go on from another one; see `Seq2Seq.reorder_state`."""
        pairs = zip(self.models, state["models"], strict=True)
        return _together([model.reorder_state(own, parents) for model, own in pairs])

    def prepare_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Adds what the steps of a loop share; see `Seq2Seq.prepare_state`."""
        pairs = zip(self.models, state["models"], strict=True)
        return _together([model.prepare_state(own) for model, own in pairs])

    def extend_state(self, state: dict[str, Any], max_length: Any) -> dict[str, Any]:
        """Makes room for more steps; see `Seq2Seq.extend_state`."""
        pairs = zip(self.models, state["models"], strict=True)
        return _together([model.extend_state(own, max_length) for model, own in pairs])

    def take_state(self, state: dict[str, Any], rows: Any) -> dict[str, Any]:
        """Leaves sentences out; see `Seq2Seq.take_state`."""
        pairs = zip(self.models, state["models"], strict=True)
        return _together([model.take_state(own, rows) for model, own in pairs])

    def cross_attention(
        self, encoder_token_ids: Any, decoder_token_ids: Any, layer: int | None = None
    ) -> Any:
        """The mean of what the models attend to; see `Seq2Seq.cross_attention`."""
        arguments = (encoder_token_ids, decoder_token_ids, layer)
        attention = [model.cross_attention(*arguments) for model in self.models]
        return ops.mean(ops.stack(attention, axis=0), axis=0)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        models = [serialize(model) for model in self.models]
        return {**super().get_config(), "models": models}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        deserialize = keras.saving.deserialize_keras_object
        models = [deserialize(model, custom_objects) for model in config["models"]]
        return cls(**{**config, "models": models})


def _mean(logits: Sequence[Any]) -> Any:
    """The logarithm of the mean of the probabilities."""
    log_probs = [ops.log_softmax(ops.cast(x, "float32"), axis=-1) for x in logits]
    total = ops.logsumexp(ops.stack(log_probs, axis=0), axis=0)
    return total - ops.log(ops.cast(len(log_probs), "float32"))


def _together(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The states of all models, with the mean of what they attended to."""
    together: dict[str, Any] = {"models": states}
    if "attention" in states[0]:
        attended = ops.stack([state["attention"] for state in states], axis=0)
        together["attention"] = ops.mean(attended, axis=0)
    return together


def _least(name: str, models: list[Seq2Seq]) -> int | None:
    limits = [getattr(model, name) for model in models]
    return min((limit for limit in limits if limit is not None), default=None)


def _check(models: Any) -> None:
    is_list = isinstance(models, Sequence) and not isinstance(models, str)
    if not (is_list and models and all(isinstance(m, Seq2Seq) for m in models)):
        raise ValueError(
            "`models` must be a list of at least one `Seq2Seq`; received "
            f"`models={models!r}`."
        )
    for name in SHARED:
        values = [getattr(model, name) for model in models]
        if len(set(values)) > 1:
            raise ValueError(
                f"`models` must share their `{name}`; received {values}. Train them "
                "with the same tokenizers."
            )
    for side in ("source_tokenizer", "target_tokenizer"):
        tokenizers = [getattr(model, side) for model in models]
        known = [tokenizer and _whole(tokenizer) for tokenizer in tokenizers]
        if any(other != known[0] for other in known):
            raise ValueError(
                f"`models` must share their `{side}`; received {len(models)} models "
                "whose tokenizers differ. Train them with the same ones."
            )


def _whole(tokenizer: Any) -> tuple[type, dict[str, Any]]:
    """Not the vocabulary alone: it may be split into in more than one way."""
    return type(tokenizer), tokenizer.get_config()

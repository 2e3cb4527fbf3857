"""Several models that decode together."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict

import keras
from keras import ops

from keras_transformer.decoding import ModelState, OutputLength, StateAxes
from keras_transformer.decoding.lengths import smaller
from keras_transformer.inference.sequence_model import SequenceInputs
from keras_transformer.inference.source_arrays import (
    ArraySpec,
    Sources,
    without_embedding,
)
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.models.generative_model import GenerativeModel
from keras_transformer.types import Config, Size, SizeT, Tensor, TokenIds

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

SHARED = (
    "source_vocabulary_size",
    "target_vocabulary_size",
    "pad_token_id",
    "start_token_id",
    "end_token_id",
    "default_search",
    "forces_end_token",
    "has_cross_attention",
    "empty_source",
    "length_arguments",
)


class EnsembleState(TypedDict, total=False):
    """The states of all models, and the mean of their attention."""

    models: list[ModelState]
    attention: Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class Ensemble(GenerativeModel):
    """Trained models with the same vocabularies that decode as one model.

    The probability of a token is the mean of its probabilities in the models. An
    ensemble decodes with every search and option, and has `score`, `align`, `stream`,
    `save` and `export` to a SavedModel. Its cost is the sum of the costs of the models.

    Args:
        models: list of `Seq2Seq`, of any sizes and designs, such as one recipe
            trained with several seeds.
        **kwargs: `name`, `dtype` and the other arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of int tensors, as for `Seq2Seq`.
        training: bool, whether dropout is applied.

    Returns:
        Log-probabilities, float32 `(batch, target_length, vocabulary_size)`: logits
        whose softmax is the mean of those of the models.

    Raises:
        ValueError: if there are no models, or their vocabularies or special token ids
            differ.

    Example:

    ```python
    ensemble = Ensemble([model, model_of_another_seed])
    ensemble.generate(["A man sleeps."])
    ```

    References:
        - [Sutskever et al., 2014](https://arxiv.org/abs/1409.3215), section 3.6
    """

    @explains_arguments
    def __init__(self, models: Sequence[GenerativeModel], **kwargs: Any):
        super().__init__(**kwargs)
        _check(models)
        self.models = list(models)
        first = self.models[0]
        for name in SHARED:
            setattr(self, name, getattr(first, name))
        self.source_tokenizer = first.source_tokenizer
        self.target_tokenizer = first.target_tokenizer
        self.max_source_length = _least(
            [model.max_source_length for model in self.models]
        )
        self.max_target_length = _least(
            [model.max_target_length for model in self.models]
        )
        self.built = True

    def call(self, inputs: SequenceInputs, training: bool | None = None) -> Tensor:
        return _mean([model(inputs, training=training) for model in self.models])

    @property
    def source_spec(self) -> ArraySpec | None:
        """The arrays that the models take; `None` = token ids."""
        return self.models[0].source_spec

    def prepare_sources(self, sources: Sources) -> Sources:
        """Embeds arrays with the first model; see `GenerativeModel`."""
        return self.models[0].prepare_sources(sources)

    def start_decoding(
        self,
        encoder_token_ids: TokenIds,
        num_beams: int,
        max_length: Size,
        return_attention: bool = False,
    ) -> EnsembleState:
        """Encodes the sources; see `GenerativeModel.start_decoding`."""
        first, *others = self.models
        options = (num_beams, max_length, return_attention)
        sources = without_embedding(encoder_token_ids)
        states = [model.start_decoding(sources, *options) for model in others]
        return _join([first.start_decoding(encoder_token_ids, *options), *states])

    def decode_step(
        self, token_ids: TokenIds, index: Tensor, state: EnsembleState
    ) -> tuple[Tensor, EnsembleState]:
        """Computes the log-probabilities of the next tokens."""
        steps = [
            model.decode_step(token_ids, index, own)
            for model, own in zip(self.models, state["models"], strict=True)
        ]
        return _mean([logits for logits, _ in steps]), _join([own for _, own in steps])

    def state_axes(self, state: EnsembleState) -> dict[str, object]:
        """Returns a structure like `state` with the `StateAxes` of each tensor."""
        pairs = zip(self.models, state["models"], strict=True)
        axes: dict[str, object] = {
            "models": [model.state_axes(own) for model, own in pairs]
        }
        if "attention" in state:
            axes["attention"] = StateAxes()
        return axes

    def max_output_lengths(
        self, source_lengths: SizeT, max_length: OutputLength | None = None
    ) -> SizeT:
        """Returns the smallest of the maximum output lengths of the models."""
        each = [
            model.max_output_lengths(source_lengths, max_length)
            for model in self.models
        ]
        return functools.reduce(smaller, each)

    def max_output_length(
        self, source_length: SizeT, max_length: OutputLength | None = None
    ) -> SizeT:
        """Returns the smallest maximum output length of a batch of the models."""
        each = [
            model.max_output_length(source_length, max_length) for model in self.models
        ]
        return functools.reduce(smaller, each)

    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Computes the mean of the attention of the models to the source."""
        attention = [
            model.cross_attention(encoder_token_ids, decoder_token_ids, layer)
            for model in self.models
        ]
        return ops.mean(ops.stack(attention, axis=0), axis=0)

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Prints the summary of each model, and the sum of their parameters."""
        for model in self.models:
            model.summary(line_length, positions, print_fn, **kwargs)
        (print_fn or print)(
            f'Ensemble: "{self.name}", {len(self.models)} models\n'
            f" Total params: {self.count_params():,}"
        )

    def get_config(self) -> Config:
        serialize = keras.saving.serialize_keras_object
        models = [serialize(model) for model in self.models]
        return {**super().get_config(), "models": models}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Config | None = None) -> Self:
        """Creates an ensemble from the result of `get_config`."""
        deserialize = keras.saving.deserialize_keras_object
        models = [deserialize(model, custom_objects) for model in config["models"]]
        return cls(**{**config, "models": models})


def _mean(logits: Sequence[Tensor]) -> Tensor:
    """Returns the logarithm of the mean of the probabilities."""
    log_probs = [ops.log_softmax(ops.cast(x, "float32"), axis=-1) for x in logits]
    total = ops.logsumexp(ops.stack(log_probs, axis=0), axis=0)
    return total - ops.log(ops.cast(len(log_probs), "float32"))


def _join(states: list[ModelState]) -> EnsembleState:
    joined: EnsembleState = {"models": states}
    if "attention" in states[0]:
        attention = ops.stack([state["attention"] for state in states], axis=0)
        joined["attention"] = ops.mean(attention, axis=0)
    return joined


def _least(limits: list[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _check(models: Sequence[GenerativeModel]) -> None:
    is_list = isinstance(models, Sequence) and not isinstance(models, str)
    if not (is_list and models and all(isinstance(m, GenerativeModel) for m in models)):
        raise ValueError(
            "`models` must be a list of at least one model such as `Seq2Seq`; received "
            f"`models={models!r}`."
        )
    for name in (*SHARED, "source_spec"):
        values = [getattr(model, name) for model in models]
        if len(set(values)) > 1:
            raise ValueError(
                f"`models` must have the same `{name}`; received {values}. Train them "
                "with the same tokenizers."
            )
    for side in ("source_tokenizer", "target_tokenizer"):
        configs = [_tokenizer_config(getattr(model, side)) for model in models]
        if any(config != configs[0] for config in configs):
            raise ValueError(
                f"`models` must have the same `{side}`; received {len(models)} models "
                "whose tokenizers differ. Train them with the same tokenizers."
            )


def _tokenizer_config(tokenizer: "Tokenizer | None") -> tuple[type, Config] | None:
    """Returns all that determines the tokens of a text, not only the vocabulary."""
    return None if tokenizer is None else (type(tokenizer), tokenizer.get_config())

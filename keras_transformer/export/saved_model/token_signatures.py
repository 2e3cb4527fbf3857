"""The signatures of a SavedModel whose sources and outputs are token ids."""

import tensorflow as tf

from keras_transformer.export.saved_model.search_functions import (
    Outputs,
    SearchFunctions,
    asserted,
    check_same_batch,
    input_spec,
    padded_seeds,
    random_seeds,
    traced,
)
from keras_transformer.inference.request import Request
from keras_transformer.models import GenerativeModel
from keras_transformer.text.prompt_tokenizer import with_first_token


class TokenFunctions(SearchFunctions):
    """Model and search as TensorFlow functions of padded token ids.

    `Signatures` adds those of strings.
    """

    def __init__(
        self, model: GenerativeModel, request: Request, quantization: str | None = None
    ):
        super().__init__(model, request, quantization)
        self._vocabulary_sizes = {
            "source": model.source_vocabulary_size,
            "target": model.target_vocabulary_size,
        }
        self._empty_source = model.empty_source

    def _real_tokens(
        self, token_ids: tf.Tensor, argument: str, side: str
    ) -> tf.RaggedTensor:
        """Returns the tokens of rows without padding; asserts ids and lengths."""
        size = self._vocabulary_sizes[side]
        message = f"`{argument}` must be from 0 to {size - 1}; received"
        known = (token_ids >= 0) & (token_ids < size)
        token_ids = asserted(token_ids, known, message, token_ids)
        real = tf.ragged.boolean_mask(token_ids, token_ids != self._pad_token_id)
        if side == "source" and self._empty_source:
            real = with_first_token(real, self._empty_source[0])
        return self._check_length(real, argument, side)

    def _search_tokens(self, token_ids: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Decodes padded token ids `(batch, source_length)` to hypotheses."""
        tokens = self._real_tokens(token_ids, "token_ids", "source")
        sources = self._pad(tokens, "source")
        rows = tf.shape(sources)[0]
        seeds = padded_seeds(seed, rows)
        result = self._search(sources, self._empty_prefixes(rows), seeds)
        return self._token_outputs(result, tf.shape(token_ids)[0])


class TokenSignatures(TokenFunctions):
    """The signatures of a model without tokenizers that a graph can contain."""

    def __init__(
        self, model: GenerativeModel, request: Request, quantization: str | None = None
    ):
        super().__init__(model, request, quantization)
        token_ids, source, target = (
            input_spec(name, tf.int32, rank=2)
            for name in ("token_ids", "source", "target")
        )
        self.functions = {
            "serving_default": traced(self._serve, token_ids),
            "tokens": traced(self._tokens, token_ids, input_spec("seed", tf.int32)),
            "score": traced(self._score_tokens, source, target),
        }

    def _serve(self, token_ids: tf.Tensor) -> Outputs:
        """Decodes padded token ids `(batch, source_length)` to hypotheses."""
        return self._search_tokens(token_ids, random_seeds(tf.shape(token_ids)[0]))

    def _tokens(self, token_ids: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Decodes padded token ids with a seed for each row."""
        seed = check_same_batch(seed, "seed", token_ids, "token_ids")
        return self._search_tokens(token_ids, seed)

    def _score_tokens(self, source: tf.Tensor, target: tf.Tensor) -> Outputs:
        """Scores padded token ids `(batch, target_length)`, and each of them."""
        target = check_same_batch(target, "target", source, "source")
        sources = self._real_tokens(source, "source", "source")
        tokens = self._real_tokens(target, "target", "target")
        scores = self._token_scores(self._pad(sources, "source"), tokens)
        return {"score": tf.reduce_sum(scores, axis=1), "token_scores": scores}

"""The signatures of a SavedModel: TensorFlow functions of strings or token ids."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import SearchResult
from keras_transformer.export.model_support import tokenizers_of
from keras_transformer.export.saved_model.search_functions import (
    PIECE_LENGTH,
    Outputs,
    asserted,
    best_texts,
    check_same_batch,
    has_known_language,
    input_spec,
    padded_seeds,
    powers_of_two,
    random_seeds,
    round_up,
    traced,
)
from keras_transformer.export.saved_model.token_signatures import TokenFunctions
from keras_transformer.inference.request import Request
from keras_transformer.models import GenerativeModel
from keras_transformer.text import Tokenizer

# A text grows from call to call, so `continue` has fewer lengths than other functions.
SHORTEST_STREAM = 64
# Sizes of the phrases of `constrained`: each pair is compiled.
PHRASES, PHRASE_LENGTHS = [4, 16, 64], [8, 32, 128]


class _Decoded(NamedTuple):
    """Decoded texts. The batch of `token_ids` and `result` is padded."""

    tokens: tf.RaggedTensor  # Of the texts, int32 `(batch, None)`.
    token_ids: tf.Tensor  # The same, int32 `(padded_batch, padded_length)`.
    result: SearchResult  # Hypotheses of the rows of `token_ids`.


class _BestHypotheses(NamedTuple):
    """The best hypotheses of texts, and the pairs that the model aligns."""

    outputs: Outputs  # Texts, scores and tokens.
    sources: tf.Tensor  # int32 `(padded_batch, padded_source_length)`.
    # int32 `(padded_batch, padded_target_length)`, from the start token on.
    targets: tf.Tensor
    batch: tf.Tensor  # Number of texts, as the lengths an int32 scalar.
    target_length: tf.Tensor
    source_length: tf.Tensor


def _is_streamed(model: GenerativeModel, request: Request) -> bool:
    """Returns whether a model has the signature `continue`.

    Its pieces are those of one search if the choice of a token depends on nothing but
    the tokens before it.
    """
    search = request.search
    is_alone = search.num_beams == 1 and not getattr(search, "logits_processors", ())
    return not model.has_cross_attention and is_alone and request.min_length == 0


class Signatures(TokenFunctions):
    """Tokenizers, model and search as TensorFlow functions of strings or token ids."""

    def __init__(
        self,
        model: GenerativeModel,
        request: Request,
        quantization: str | None = None,
        constraints: bool = False,
    ):
        super().__init__(model, request, quantization)
        self.source_tokenizer, _ = tokenizers_of(model)
        source = self._vocabularies["target"]
        if self.source_tokenizer is not self.target_tokenizer:
            source = tf.constant(self.source_tokenizer.get_vocabulary())
        self._vocabularies["source"] = source
        self._has_max_length = request.max_length is not None
        self._longest_targets = lambda lengths: model.max_output_lengths(
            lengths, tf.int32.max
        )
        text, prefix, seed = (
            input_spec("text"),
            input_spec("prefix"),
            input_spec("seed", tf.int32),
        )
        token_ids = input_spec("token_ids", tf.int32, rank=2)
        functions = {
            "serving_default": traced(self._serve, text),
            "nbest": traced(self._nbest, text, prefix, seed),
            "tokens": traced(self._tokens, token_ids),
            "score": traced(
                self._score_texts, input_spec("source"), input_spec("target")
            ),
        }
        functions["lengths"] = traced(
            self._lengths, input_spec("source"), input_spec("target")
        )
        if model.has_cross_attention:
            functions["attention"] = traced(self._attention, text)
            functions["align"] = traced(
                self._align_texts, input_spec("source"), input_spec("target")
            )
        if constraints:
            phrases = input_spec("constraints")
            self._ends = int(model.forces_end_token)
            functions |= {
                "constrained": traced(self._constrained, text, prefix, phrases),
                "check_constraints": traced(self._check_constraints, phrases),
            }
        if _is_streamed(model, request):
            state = input_spec("state")
            functions["continue"] = traced(self._continue, text, state, seed)
        if model.returns_attention_scores:
            functions["attention_scores"] = traced(self._attention_scores, text)
        self.functions = functions  # TensorFlow saves no dictionary that changes.

    def _serve(self, text: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` to strings and scores `(batch,)`."""
        return best_texts(self._texts_of(self._decode(text)))

    def _nbest(self, text: tf.Tensor, prefix: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` to hypotheses `(batch, num_hypotheses)`."""
        prefix = check_same_batch(prefix, "prefix", text, "text")
        seed = check_same_batch(seed, "seed", text, "text")
        decoded = self._decode(text, prefix, seed)
        outputs = self._texts_of(decoded)
        if self._empty_source:
            outputs["full_text"] = self._full_texts(decoded)
        return outputs

    def _full_texts(self, decoded: _Decoded) -> tf.Tensor:
        """Returns the prompts with their continuations, `(batch, num_hypotheses)`."""
        pad, tokenizer = self._pad_token_id, self.target_tokenizer
        prompts = decoded.tokens.to_tensor(pad)
        # The start token of a prompt can be the end token, which ends a text.
        special = (tokenizer.start_token_id, tokenizer.end_token_id)
        is_special = (prompts == special[0]) | (prompts == special[1])
        prompts = tf.where(is_special, pad, prompts)
        found = decoded.result.token_ids[: tf.shape(prompts)[0]]
        hypotheses, length = tf.unstack(tf.shape(found)[1:])
        prompts = tf.repeat(prompts, hypotheses, axis=0)
        token_ids = tf.concat([prompts, tf.reshape(found, [-1, length])], axis=1)
        return tf.reshape(tokenizer.detokenize(token_ids), tf.shape(found)[:2])

    def _constrained(
        self, text: tf.Tensor, prefix: tf.Tensor, constraints: tf.Tensor
    ) -> Outputs:
        """Decodes strings `(batch,)` to hypotheses with phrases, separated by tabs."""
        prefix = check_same_batch(prefix, "prefix", text, "text")
        constraints = check_same_batch(constraints, "constraints", text, "text")
        return self._texts_of(self._decode(text, prefix, constraints=constraints))

    def _check_constraints(self, constraints: tf.Tensor) -> Outputs:
        """Returns whether the vocabulary can spell each phrase, bool `(batch,)`."""
        tokens = self.target_tokenizer.tokenize(constraints)
        unknown = tokens == self.target_tokenizer.unknown_token_id
        spelled = ~tf.reduce_any(unknown, axis=1) & (tokens.row_lengths() > 0)
        return {"spelled": spelled}

    def _tokens(self, token_ids: tf.Tensor) -> Outputs:
        """Decodes padded token ids `(batch, source_length)` to hypotheses."""
        return self._search_tokens(token_ids, random_seeds(tf.shape(token_ids)[0]))

    def _continue(self, text: tf.Tensor, state: tf.Tensor, seed: tf.Tensor) -> Outputs:
        """Continues prompts `(batch,)` and what they have been continued with."""
        state = check_same_batch(state, "state", text, "text")
        seed = check_same_batch(seed, "seed", text, "text")
        prompts = self.source_tokenizer.tokenize(text, add_end=True)
        prompts = self._check_length(prompts, "text", "source")
        earlier = tf.strings.to_number(tf.strings.split(state), tf.int32)
        earlier = earlier.with_row_splits_dtype(prompts.row_splits.dtype)
        tokens = tf.concat([prompts, earlier], axis=1)
        token_ids = self._pad(
            self._check_length(tokens, "state", "source"),
            "source",
            powers_of_two(SHORTEST_STREAM, self._limits["source"]),
        )
        seeds = padded_seeds(seed, tf.shape(token_ids)[0])
        result = self._search_piece(token_ids, seeds)
        found = result.token_ids[: tf.shape(text)[0], 0]
        is_token = tf.not_equal(found, self._pad_token_id)
        piece = tf.ragged.boolean_mask(found, is_token)
        written = tf.concat([earlier, piece], axis=1)
        if self._has_max_length:
            limits = self._max_output_lengths(tf.cast(prompts.row_lengths(), tf.int32))
            written = _first_tokens(written, limits)
        is_end = tf.equal(found, self.target_tokenizer.end_token_id)
        ended = tf.reduce_any(is_end, axis=1)
        ended |= piece.row_lengths() < PIECE_LENGTH  # The context of the model is full.
        if self._has_max_length:
            ended |= tf.cast(written.row_lengths(), tf.int32) >= limits
        lengths = prompts.row_lengths() + written.row_lengths()
        ended |= lengths > self._limits["source"]
        return {
            "text": self.target_tokenizer.detokenize(written),
            "state": tf.strings.reduce_join(
                tf.strings.as_string(written), axis=1, separator=" "
            ),
            "length": tf.cast(written.row_lengths(), tf.int32),
            "done": tf.cast(ended, tf.int32),
        }

    def _score_texts(self, source: tf.Tensor, target: tf.Tensor) -> Outputs:
        """Scores pairs of strings `(batch,)`, and the tokens of the targets."""
        sources = self._checked_tokens(
            self.source_tokenizer, source, "source", "source"
        )
        target = check_same_batch(target, "target", source, "source")
        tokens = self._checked_tokens(self.target_tokenizer, target, "target", "target")
        limits = self._longest_targets(tf.cast(sources.row_lengths(), tf.int32))
        is_short = tf.cast(tokens.row_lengths(), tf.int32) <= limits
        message = "`source` and `target` must be shorter together"
        tokens = asserted(tokens, is_short, message)
        return self._scores(self._pad(sources, "source"), tokens)

    def _lengths(self, source: tf.Tensor, target: tf.Tensor) -> Outputs:
        """Counts the tokens of strings `(batch,)`, those of the end included.

        A text without words has 1, a language token that the vocabulary lacks 0.
        """
        target = check_same_batch(target, "target", source, "source")
        return {
            "source_length": self._count_tokens(self.source_tokenizer, source),
            "target_length": self._count_tokens(self.target_tokenizer, target),
        }

    def _count_tokens(self, tokenizer: Tokenizer, texts: tf.Tensor) -> tf.Tensor:
        tokens = tokenizer.tokenize(texts, add_end=True)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        if tokenizer is not self.source_tokenizer or not self._empty_source:
            padded = tokens.to_tensor(self._pad_token_id)
            is_empty = ~self._has_words(tokenizer, texts, padded)
            lengths = tf.where(is_empty, 1, lengths)
        return tf.where(has_known_language(tokenizer, texts, tokens), lengths, 0)

    def _has_words(
        self, tokenizer: Tokenizer, texts: tf.Tensor, token_ids: tf.Tensor
    ) -> tf.Tensor:
        """Returns which texts have words, given their padded token ids with the end."""
        is_token = token_ids != self._pad_token_id
        for language_token_id in tokenizer.language_token_ids:
            is_token &= token_ids != language_token_id
        has_tokens = tf.math.count_nonzero(is_token, axis=1) > 1
        return has_tokens & ~tokenizer.find_blank(texts)

    def _attention(self, text: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` and aligns the tokens of both sides."""
        outputs, sources, targets, batch, length, width = self._best(text)
        aligned = self._align(sources, targets)
        return {
            **outputs,
            "attention": aligned.attention[:batch, :length, :width],
            "positions": aligned.positions[:batch, :length],
        }

    def _align_texts(self, source: tf.Tensor, target: tf.Tensor) -> Outputs:
        """Aligns the tokens of pairs of strings `(batch,)`."""
        sources = self._checked_tokens(
            self.source_tokenizer, source, "source", "source"
        )
        target = check_same_batch(target, "target", source, "source")
        tokens = self._checked_tokens(self.target_tokenizer, target, "target", "target")
        source_ids = self._pad(sources, "source")
        target_ids = self._pad(tokens, "target")
        aligned = self._align(source_ids, self._shift(target_ids))
        batch, length = tf.unstack(tokens.bounding_shape())
        width = sources.bounding_shape()[1]
        return {
            "source_tokens": self._to_strings("source", source_ids[:batch, :width]),
            "tokens": self._to_strings("target", target_ids[:batch, :length]),
            "attention": aligned.attention[:batch, :length, :width],
            "positions": aligned.positions[:batch, :length],
        }

    def _attention_scores(self, text: tf.Tensor) -> Outputs:
        """Decodes strings `(batch,)` and returns the cross-attention of all heads."""
        outputs, sources, targets, batch, length, width = self._best(text)
        scores = self._scores_of_heads(sources, targets)
        return {**outputs, "attention_scores": scores[:batch, :, :, :length, :width]}

    def _best(self, text: tf.Tensor) -> _BestHypotheses:
        decoded = self._decode(text)
        tokens, token_ids, result = decoded
        outputs = self._texts_of(decoded)
        width = tokens.bounding_shape(out_type=tf.int32)[1]
        length = tf.reduce_max(result.lengths[:, 0])
        found = result.token_ids[
            :, 0
        ]  # whole, so that sources of a length have one shape
        batch = tf.shape(text)[0]
        named = {
            **best_texts(outputs),
            "source_tokens": self._to_strings("source", token_ids[:batch, :width]),
            "tokens": self._to_strings("target", found[:batch, :length]),
        }
        targets = self._shift(found)
        return _BestHypotheses(named, token_ids, targets, batch, length, width)

    def _decode(
        self,
        text: tf.Tensor,
        prefix: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
        constraints: tf.Tensor | None = None,
    ) -> _Decoded:
        """Decodes texts. One without words gives an empty hypothesis with score 0."""
        tokens = self._checked_tokens(self.source_tokenizer, text, "text", "source")
        _, token_ids, result = self._search_padded(tokens, prefix, seed, constraints)
        count = tf.shape(text)[0]
        has_words = self._has_words(self.source_tokenizer, text, token_ids[:count])
        if self._empty_source:  # The model continues it too.
            has_words = tf.ones_like(has_words)
        rows = tf.shape(token_ids)[0] - count
        is_empty = tf.pad(~has_words, [[0, rows]])[:, None]
        result = SearchResult(
            tf.where(is_empty[:, None], self._pad_token_id, result.token_ids),
            tf.where(is_empty, 0, result.lengths),
            tf.where(is_empty, 0.0, result.scores),
            result.truncated & ~is_empty,
        )
        return _Decoded(tokens, token_ids, result)

    def _texts_of(self, decoded: _Decoded) -> Outputs:
        return self._outputs(decoded.result, decoded.tokens.nrows())

    def _search_padded(
        self,
        tokens: tf.RaggedTensor,
        prefix: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
        constraints: tf.Tensor | None = None,
    ) -> _Decoded:
        """Pads the tokens and searches for the outputs of all rows."""
        token_ids = self._pad(tokens, "source")
        rows = tf.shape(token_ids)[0]
        seed = random_seeds(rows) if seed is None else padded_seeds(seed, rows)
        if prefix is None:
            prefix = tf.fill([tokens.nrows()], "")
        prefixes = self._prefixes(prefix, tokens.row_lengths(), rows)
        if constraints is None:
            result = self._search(token_ids, prefixes, seed)
        else:
            phrases = self._phrases(constraints, prefix, tokens.row_lengths(), rows)
            result = self._search_phrases(token_ids, prefixes, phrases)
        return _Decoded(tokens, token_ids, result)

    def _phrases(
        self,
        constraints: tf.Tensor,
        prefix: tf.Tensor,
        source_lengths: tf.Tensor,
        rows: tf.Tensor,
    ) -> tf.Tensor:
        """Returns token ids `(rows, phrases, phrase_length)` of phrases."""
        parts = tf.strings.split(constraints, "\t")
        parts = tf.ragged.boolean_mask(parts, tf.strings.strip(parts) != "")
        tokenizer = self.target_tokenizer
        tokens = tokenizer.tokenize(parts.flat_values)
        splits = tf.cast(parts.row_splits, tokens.row_splits.dtype)
        lengths = tf.RaggedTensor.from_row_splits(tokens.row_lengths(), splits)
        before = tokenizer.tokenize(prefix).row_lengths()
        room = self._max_output_lengths(tf.cast(source_lengths, tf.int32)) - self._ends
        needed = tf.cast(tf.reduce_sum(lengths, axis=1) + before, tf.int32)
        is_short = (needed <= room) | (lengths.row_lengths() == 0)
        message = "`constraints` must be shorter than the maximum output length"
        tokens = asserted(tokens, is_short, message)
        unknown = tokens.flat_values == tokenizer.unknown_token_id
        is_known = ~tf.reduce_any(unknown) & tf.reduce_all(tokens.row_lengths() > 0)
        expected = "only characters and words of the target vocabulary"
        message = f"`constraints` must have phrases with {expected}"
        tokens = asserted(tokens, is_known, message)
        phrases = tf.RaggedTensor.from_row_splits(tokens, splits)
        _, count, longest = tf.unstack(phrases.bounding_shape(out_type=tf.int64))
        count, longest = round_up(count, PHRASES), round_up(longest, PHRASE_LENGTHS)
        shape = tf.stack([tf.cast(rows, tf.int64), count, longest])
        return phrases.to_tensor(self._pad_token_id, shape=shape)


def _first_tokens(tokens: tf.RaggedTensor, counts: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first tokens of rows, up to int32 `counts` `(batch,)`."""
    places = tf.ragged.range(tokens.row_lengths())
    is_first = tf.cast(places.flat_values, tf.int32) < tf.gather(
        counts, tokens.value_rowids()
    )
    return tf.ragged.boolean_mask(tokens, tokens.with_flat_values(is_first))

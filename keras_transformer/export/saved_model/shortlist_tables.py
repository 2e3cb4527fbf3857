"""A shortlist inside a SavedModel: its table, and the searches that it chooses from."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import Search, SearchResult
from keras_transformer.decoding.allowed_tokens import (
    AllowedTokens,
    computes_few_logits,
    special_tokens,
)
from keras_transformer.export.protocols import ExportableModel
from keras_transformer.inference.shortlist import Shortlist
from keras_transformer.inference.shortlist_batches import sizes


class ShortlistTables(tf.Module):
    """The target tokens of each source token as constants of a SavedModel.

    A batch is searched with one of few numbers of allowed tokens, which are compiled
    separately.

    Args:
        shortlist: the shortlist.
        model: the model.
        search: the search.

    Attributes:
        sizes: list of ints, the numbers of allowed tokens.
    """

    def __init__(self, shortlist: Shortlist, model: ExportableModel, search: Search):
        super().__init__()
        size = model.target_vocabulary_size
        self._renumbers = computes_few_logits(search, model)
        self.sizes = [*sizes(size)[:-1:2], size] if self._renumbers else [size]
        translations = shortlist.translations
        missing = model.source_vocabulary_size - len(translations)
        translations = np.pad(translations, ((0, missing), (0, 0)), constant_values=-1)
        # Padding, which is always allowed, takes the place of no token.
        pad = model.pad_token_id
        self._translations = tf.constant(np.where(translations < 0, pad, translations))
        self._always = tf.constant(shortlist.always_allowed(model)[None])
        self._special = special_tokens(model)

    def search(
        self,
        searches: Sequence[Callable[..., SearchResult]],
        token_ids: tf.Tensor,
        others: Sequence[tf.Tensor],
    ) -> SearchResult:
        """Searches with the smallest number of allowed tokens that is enough.

        Args:
            searches: functions of the argument `allowed`, one for each of `sizes`.
            token_ids: int32 tensor `(rows, source_length)`, padded.
            others: int32 tensors `(rows, ...)`, padded, the tokens of prefixes and
                phrases, which are allowed too.

        Returns:
            A `SearchResult`.
        """
        mask = self._mask(token_ids, others)
        if not self._renumbers:
            return searches[0](allowed=AllowedTokens(tf.zeros([0], tf.int32), mask))
        special = self._special
        used = tf.reduce_any(mask, axis=0)
        rank = tf.where(used, len(special), len(special) + 1)
        places = tf.constant(special)[:, None]
        rank = tf.tensor_scatter_nd_update(rank, places, tf.range(len(special)))
        count = tf.math.count_nonzero(rank <= len(special), dtype=tf.int32)
        order = tf.argsort(rank, stable=True)

        def branch(
            size: int, search: Callable[..., SearchResult]
        ) -> Callable[[], SearchResult]:
            def searched() -> SearchResult:
                columns = tf.ensure_shape(order[:size], [size])
                allowed = tf.gather(mask, columns, axis=1)
                return search(allowed=AllowedTokens(columns, allowed))

            return searched

        branches = [*map(branch, self.sizes, searches)]
        place = tf.searchsorted(self.sizes, count[None])[0]
        return SearchResult(*tf.switch_case(place, branches))

    def _mask(self, token_ids: tf.Tensor, others: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the allowed tokens, boolean `(rows, target_vocabulary_size)`."""
        rows = tf.shape(token_ids)[0]
        found = [tf.gather(self._translations, token_ids), *others]
        flat = [tf.reshape(x, tf.stack([rows, -1])) for x in found]
        always = tf.repeat(self._always, rows, axis=0)
        tokens = tf.concat([always, *flat], axis=1)
        numbers = tf.repeat(tf.range(rows), tf.shape(tokens)[1])
        places = tf.stack([numbers, tf.reshape(tokens, [-1])], axis=1)
        ones = tf.ones([tf.shape(places)[0]], tf.int32)
        return tf.scatter_nd(places, ones, tf.stack([rows, self.sizes[-1]])) > 0

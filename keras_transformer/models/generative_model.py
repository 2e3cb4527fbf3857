"""The base class of models that decode: generate, stream, score and align."""

import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keras_transformer.decoding import BeamSearch, OutputLength, Search
from keras_transformer.decoding.lengths import warn_of_truncation
from keras_transformer.decoding.search_options import explains_search_options
from keras_transformer.inference.alignment import Aligner, Alignment
from keras_transformer.inference.constraints import Constraints
from keras_transformer.inference.generation import Generator
from keras_transformer.inference.request import Request
from keras_transformer.inference.scoring import Scorer, ScoreResult
from keras_transformer.inference.streaming import SearchTree, Stepper
from keras_transformer.inference.token_ids import Sequences, is_text
from keras_transformer.models.searchable_model import SearchableModel
from keras_transformer.types import Tensor, TokenIds

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class GenerativeModel(SearchableModel):
    """Base class of models from sequences to sequences of tokens.

    A subclass sets the attributes, defines the call and the steps of decoding
    (`start_decoding`, `decode_step`, …), and calls `_cache_compiled_functions` at the
    end of its `__init__`. It then follows the protocol
    `keras_transformer.inference.protocols.SequenceModel`: every search decodes it, and
    every function of `keras_transformer.inference` and `keras_transformer.export`
    takes it.

    Attributes, beside those of `SearchableModel`:
        source_tokenizer: tokenizer of the sources, or `None`.
        target_tokenizer: tokenizer of the targets, or `None`.
        source_vocabulary_size: int.
        target_vocabulary_size: int.
        max_source_length: int, maximum length of a source in tokens, or `None`.
        default_search: the search of `generate` and `stream`, and of the SavedModel, if
            none is given.
        has_cross_attention: bool, whether `cross_attention` is defined.
        empty_source: tuple of ints, the token ids that take the place of a source
            without tokens.
        length_arguments: names of the arguments that limit the lengths of sources and
            targets, for error messages.
    """

    source_tokenizer: "Tokenizer | None"
    target_tokenizer: "Tokenizer | None"
    source_vocabulary_size: int
    target_vocabulary_size: int
    max_source_length: int | None
    default_search: Search = BeamSearch()
    has_cross_attention: bool = True
    empty_source: tuple[int, ...] = ()
    length_arguments: tuple[str, str] = ("max_source_length", "max_target_length")

    def keep_length_ratio(self, data: Any) -> None:
        """Raises `output_length_ratio` to that of a dataset.

        Args:
            data: the dataset of a `ParallelDataset`; other data have no effect.
        """
        ratio = float(getattr(data, "output_length_ratio", 1.0))
        if ratio > self.output_length_ratio:
            self.output_length_ratio = ratio
            self._cache_compiled_functions()

    def _cache_compiled_functions(self) -> None:
        self._generator = Generator(self)
        self._stepper = Stepper(self, self._generator)
        self._scorer = Scorer(self)
        self._aligner = Aligner(self)

    @abc.abstractmethod
    def cross_attention(
        self,
        encoder_token_ids: TokenIds,
        decoder_token_ids: TokenIds,
        layer: int | None = None,
    ) -> Tensor:
        """Computes the attention of each target token to the source tokens.

        Args:
            encoder_token_ids: int tensor `(batch, source_length)`, padded.
            decoder_token_ids: int tensor `(batch, target_length)`, the targets after
                the start token.
            layer: int, index of the decoder block, as in a list; see `align`.

        Returns:
            float32 tensor `(batch, target_length, source_length)`, a mean over the
            heads.

        Raises:
            ValueError: if there is no such layer.
        """

    @explains_search_options
    def generate(
        self,
        inputs: Sequences,
        search: Search | None = None,
        max_length: OutputLength | None = None,
        batch_size: int = 64,
        return_scores: bool = False,
        *,
        return_truncated: bool = False,
        return_alignments: bool = False,
        min_length: OutputLength = 0,
        prefix: Sequences | None = None,
        seed: int | None = None,
        distinct_texts: bool = False,
        constraints: Constraints | None = None,
    ) -> Any:
        """Decodes texts or token ids with a compiled search.

        The result of one input does not depend on the others. A string is one text,
        also with line breaks. The output of a text without words, which is empty or has
        white space and invisible characters alone, is an empty text.

        Args:
            inputs: a text or a list of texts, if the model has tokenizers; or
                token ids, each with its end token: a list of lists of ints, or
                an int array `(batch, source_length)` with padding. Instead of a list,
                also an array, a tensor or a `tf.data.Dataset`, batched or not.
            search: the search; `BeamSearch()` (4 beams, length penalty 0.6)
                if `None`.
            max_length: int or `RelativeLength`, maximum output length in tokens,
                the end token included; `None` = the length of the source plus 50, or
                `output_length_ratio` times its length if this is more. Without
                `return_truncated`, a warning says how many texts reach the limit of
                `None`.
            batch_size: int, number of inputs decoded together.
            return_scores: bool, for texts: whether to return the scores as well.
            return_truncated: bool, for texts: whether to return as well which of them
                have reached the maximum length, so that their ends may be missing.
            return_alignments: bool, whether to return an `Alignment` of each hypothesis
                with its input; see `align`.
            min_length: int or `RelativeLength`, minimum output length in tokens, the
                end token included.
            prefix: the beginning of each output: a text for a text; or one entry
                for each input, texts or token ids without end token, which may be
                empty. The scores are those of the whole output.
            seed: int from -2**31 to 2**31 - 1, seed of `Sampling`; if `None`, NumPy
                draws it, so `keras.utils.set_random_seed` determines it.
            distinct_texts: bool, for texts: whether each text of an input is returned
                once, with its best hypothesis. Several hypotheses can be the same text
                in different subwords. The lists are then shorter, and the scores end
                with `-inf`. Search with more beams and hypotheses to get more texts.
            constraints: the phrases that must occur in each output: a list of texts
                for a text; or one list for each input, of texts or of lists of token
                ids, which may be empty. Requires a `BeamSearch`. A phrase occurs if its
                tokens follow each other, even if its last word continues; one that is
                given twice must occur twice. An output that contains its phrases
                without `constraints` stays the same.

        Returns:
            For token ids a `SearchResult` of NumPy arrays. For texts a list of
            texts (for a single text, a text), or of lists of texts if the
            search returns several hypotheses. With `return_scores=True` a tuple with a
            float32 array of scores `(batch,)` or `(batch, num_hypotheses)`; with
            `return_truncated=True` also with a boolean array of this shape; with
            `return_alignments=True` a tuple with a list of `Alignment`s, or of lists
            of them, as the last entry.

        Raises:
            ValueError: if a token id is not in the vocabulary, a source is
                longer than `max_source_length`, the inputs are texts and the model has
                no tokenizers, a text has a lone surrogate or a language token that the
                vocabulary lacks, an argument is out of range, or an input to align has
                no tokens.
            FloatingPointError: if a hypothesis ends because the logits of a step have
                no probabilities: one is NaN or `inf`, or all are `-inf`.

        Example:

        ```python
        model.generate(["A man sleeps.", "Two dogs run."])
        model.generate("A man sleeps.", prefix="Ein Mann")
        model.generate([[17, 25, 3]], search=GreedySearch()).token_ids
        text, alignment = model.generate("A man sleeps.", return_alignments=True)
        ```
        """
        request = Request(search or self.default_search, max_length, min_length)
        return self._generate(
            inputs,
            request,
            prefix,
            seed,
            batch_size,
            return_scores=return_scores,
            return_truncated=return_truncated,
            return_alignments=return_alignments,
            distinct_texts=distinct_texts,
            constraints=constraints,
        )

    def _generate(
        self,
        inputs: Sequences,
        request: Request,
        prefix: Sequences | None,
        seed: int | None,
        batch_size: int,
        *,
        return_scores: bool,
        return_truncated: bool,
        return_alignments: bool = False,
        distinct_texts: bool = False,
        include_source: bool = False,
        constraints: Constraints | None = None,
    ) -> Any:
        """Decodes, and returns the outputs in the form of the inputs."""
        single = is_text(inputs)
        prefix = [prefix] if single and is_text(prefix) else prefix
        if single and constraints is not None:
            constraints = [constraints]
        result, texts, alignments = self._generator.generate(
            *(inputs, request, prefix, seed, batch_size),
            return_alignments=return_alignments,
            distinct_texts=distinct_texts,
            include_source=include_source,
            constraints=constraints,
        )
        one = request.search.num_hypotheses == 1
        outputs: list[Any] = [result]
        if texts is not None:
            outputs = [_squeeze(texts, one)]
            if return_scores:
                outputs.append(result.scores[:, 0] if one else result.scores)
            if return_truncated:
                outputs.append(result.truncated[:, 0] if one else result.truncated)
            elif request.max_length is None and self.forces_end_token:
                best: Any = result.truncated[:, 0]
                warn_of_truncation(int(best.sum()), len(texts))
        if alignments is not None:
            outputs.append(_squeeze(alignments, one))
        if single:
            outputs = [output[0] for output in outputs]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    @explains_search_options
    def stream(
        self,
        inputs: Any,
        search: Search | None = None,
        max_length: OutputLength | None = None,
        *,
        min_length: OutputLength = 0,
        prefix: Any = None,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Decodes one input and yields its output piece by piece.

        A token is yielded as soon as all hypotheses that can become the output agree
        on it: at once with `GreedySearch` and `Sampling`, a few steps later with
        `BeamSearch`. The pieces of a text, joined, are the output of `generate`, unless
        the logits processors ban all tokens of a greedy hypothesis: the output of
        `generate` is then empty. The search and its step are compiled once.

        Args:
            inputs: a text, if the model has tokenizers; or a list of token ids with
                its end token.
            search: the search; `BeamSearch()` if `None`, as in `generate`.
            max_length: see `generate`.
            min_length: see `generate`.
            prefix: a text, or a list of token ids, the beginning of the output.
            seed: see `generate`.

        Yields:
            For a text, texts; for token ids, ints, the last of which is the end token.

        Raises:
            ValueError: if an argument is out of range.
            FloatingPointError: at the end, if the logits of the model have no
                probabilities; see `generate`.

        Example:

        ```python
        for piece in model.stream("A man sleeps."):
            print(piece, end="", flush=True)
        ```
        """
        request = Request(search or self.default_search, max_length, min_length)
        return self._stepper.stream(inputs, request, prefix, seed)

    @explains_search_options
    def search_tree(
        self,
        inputs: Any,
        search: BeamSearch | None = None,
        max_length: OutputLength | None = None,
        *,
        min_length: OutputLength = 0,
        prefix: Any = None,
    ) -> SearchTree:
        """Decodes one input and returns all hypotheses of the beam search.

        The search is that of `generate`. The tree of an empty text is empty.

        Args:
            inputs: a text, if the model has tokenizers; or a list of token ids with
                its end token.
            search: a `BeamSearch`, `BeamSearch()` if `None`.
            max_length: see `generate`.
            min_length: see `generate`.
            prefix: a text, or a list of token ids, the beginning of the output.

        Returns:
            A `SearchTree`.

        Raises:
            ValueError: if the search is not a `BeamSearch`, or an argument is out of
                range.
            FloatingPointError: see `generate`.

        Example:

        ```python
        from keras_transformer import plotting

        tree = model.search_tree("A man sleeps.", BeamSearch(num_beams=3))
        plotting.plot_search_tree(*tree).savefig("search.png")
        ```
        """
        request = Request(search or BeamSearch(), max_length, min_length)
        return self._stepper.search_tree(inputs, request, prefix)

    @explains_search_options
    def score(
        self,
        sources: Sequences,
        targets: Sequences,
        batch_size: int = 64,
        *,
        add_end: bool = True,
    ) -> ScoreResult:
        """Computes the log-probability of each target, given its source.

        The score of one pair does not depend on the others. It has no label
        smoothing and no length penalty.

        Args:
            sources: a text or a list of texts, if the model has tokenizers; or token
                ids, each with its end token: a list of lists of ints, or an int array
                `(batch, source_length)` with padding.
            targets: as many texts or lists of token ids, likewise, without the start
                token. `generate(ids).token_ids[:, 0]` has this form.
            batch_size: int, number of pairs scored together.
            add_end: bool, whether targets that are texts end with the end token.
                `False` = targets are incomplete: the score is that of a beginning.
                Token ids are scored as they are.

        Returns:
            A `ScoreResult` of NumPy arrays, with the `perplexity` of the corpus.

        Raises:
            ValueError: if the numbers of sources and targets differ, a token id is not
                in the vocabulary, a row is longer than `max_source_length` or
                `max_target_length`, or the inputs are texts and the model has no
                tokenizers.

        Example:

        ```python
        result = model.score(["A man sleeps."], ["Ein Mann schläft."])
        print(result.scores.shape, result.perplexity > 1)  # (1,) True
        print(len(result.token_scores[0]) == result.lengths[0])  # True
        ```
        """
        return self._scorer.score(sources, targets, batch_size, add_end)

    @explains_search_options
    def align(
        self,
        sources: Sequences,
        targets: Sequences,
        layer: int | None = None,
        batch_size: int = 64,
    ) -> list[Alignment]:
        """Aligns each target with its source by the cross-attention of one layer.

        The alignment of one pair does not depend on the others. An `Ensemble` aligns
        with the mean of the attention of its models.

        Args:
            sources: a text or a list of texts, if the model has tokenizers; or token
                ids, each with its end token: a list of lists of ints, or an int array
                `(batch, source_length)` with padding.
            targets: as many texts or lists of token ids, likewise, without the start
                token.
            layer: int, index of the decoder block, as in a list. `None` = the
                second-to-last (or the only) block, which agrees best with alignments by
                hand (Garg et al., 2019).
            batch_size: int, number of pairs aligned together.

        Returns:
            A list with one `Alignment` per pair.

        Raises:
            ValueError: if the numbers of sources and targets differ, the model does not
                accept one, a source has no tokens, or there is no such layer.

        Example:

        ```python
        (alignment,) = model.align(["A man sleeps."], ["Ein Mann schläft."])
        target_length, source_length = alignment.attention.shape
        print(len(alignment.positions) == target_length)  # True
        ```

        References:
            - [Garg et al., 2019](https://arxiv.org/abs/1909.02074)
        """
        return self._aligner.align(sources, targets, layer, batch_size)


def _squeeze(rows: list[list[Any]], one: bool) -> list[Any]:
    """Replaces the lists with the hypothesis if the search returns one."""
    return [row[0] if one else row for row in rows]

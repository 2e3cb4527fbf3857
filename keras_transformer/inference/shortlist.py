"""Lexical shortlists: the target tokens that are probable translations of a source."""

import hashlib
import os
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from keras_transformer.inference.protocols import SequenceModel
from keras_transformer.inference.sources import SourceRows
from keras_transformer.inference.token_ids import Rows
from keras_transformer.inference.translation_table import learn_translation_table
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.files import written_whole

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

# What NumPy raises for other files than those of `save`; another array has no context.
_WRONG_FILE = (ValueError, KeyError, IndexError, EOFError, TypeError, AttributeError)

Paths: TypeAlias = str | os.PathLike | Sequence[str | os.PathLike]


class Shortlist:
    """The target tokens that are probable translations of each source token.

    A search with a shortlist considers only the translations of the tokens of the
    source, the most frequent target tokens, the end token and the unknown token. It
    computes the logits of fewer tokens, so it takes less time. Probabilities are
    normalised over the shortlist of the source.

    Args:
        translations: int array `(source_tokens, count)`, the target tokens of each
            source token; -1 = none.
        frequent_token_ids: list of ints, the target tokens that each source has.
        vocabularies: pair of texts that identify the vocabularies of the source and the
            target, or `None`; see `from_parallel_text`.

    Raises:
        ValueError: if an array has another shape or dtype.

    Example:

    ```python
    shortlist = Shortlist.from_parallel_text("train.en", "train.de", model)
    model.generate(["A man sleeps."], shortlist=shortlist)
    ```

    References:
        - [Jean et al., 2015](https://aclanthology.org/P15-1001), section 3.2
    """

    def __init__(
        self,
        translations: np.ndarray,
        frequent_token_ids: Sequence[int] | np.ndarray,
        vocabularies: tuple[str, str] | None = None,
    ) -> None:
        self.translations = _int_array("translations", translations, 2)
        self.frequent_token_ids = _int_array(
            "frequent_token_ids", frequent_token_ids, 1
        )
        self.vocabularies = vocabularies

    @classmethod
    def from_parallel_text(
        cls,
        sources: Paths,
        targets: Paths,
        model: SequenceModel,
        *,
        translations_per_token: int = 50,
        frequent_tokens: int = 100,
        max_pairs: int = 200_000,
    ) -> Self:
        """Learns a shortlist from parallel text with IBM model 1.

        Sentences of more than 100 tokens are skipped.

        Args:
            sources: path of the source text, one sentence a line, plain or gzip
                (`.gz`); or a list of paths.
            targets: path of the translations, likewise.
            model: the model, whose tokenizers split the text.
            translations_per_token: int, maximum number of translations of a token.
            frequent_tokens: int, number of frequent target tokens.
            max_pairs: int, maximum number of pairs of lines. Of a longer text, pairs
                at equal distances are used. Time and memory are limited by it.

        Returns:
            A `Shortlist`.

        Raises:
            ValueError: if a number is out of range, the model has no tokenizers, the
                numbers of lines differ, or no pair has tokens on both sides.
            OSError: if a file cannot be read.

        References:
            - [Brown et al., 1993](https://aclanthology.org/J93-2003), section 4.1
        """
        check_ints(0, frequent_tokens=frequent_tokens)
        check_ints(
            1, translations_per_token=translations_per_token, max_pairs=max_pairs
        )
        from keras_transformer.inference.token_pairs import read_token_pairs

        tokenizers = _tokenizers(model)
        paths, others = (
            [side] if isinstance(side, str | os.PathLike) else [*side]
            for side in (sources, targets)
        )
        pairs = read_token_pairs(paths, others, tokenizers, max_pairs)
        counts = np.bincount([token for row in pairs.targets for token in row])
        frequent = np.argsort(-counts, kind="stable")[:frequent_tokens]
        table = learn_translation_table(*pairs)
        return cls(
            table.best(tokenizers[0].vocabulary_size, translations_per_token),
            frequent[counts[frequent] > 0],
            vocabulary_digests(*tokenizers),
        )

    @classmethod
    def from_lexical_table(
        cls,
        path: str | os.PathLike,
        model: SequenceModel,
        *,
        translations_per_token: int = 50,
        frequent_tokens: int = 100,
    ) -> Self:
        """Reads a lexical table such as `lex.s2t` of Marian.

        Args:
            path: path of the file, UTF-8, plain or gzip (`.gz`). Each line has a target
                token, a source token and the probability of the target token given the
                source token. Tokens that the vocabularies lack are skipped.
            model: the model, whose tokenizers have the vocabularies.
            translations_per_token: int, maximum number of translations of a token.
            frequent_tokens: int, number of tokens at the beginning of the target
                vocabulary, which count as frequent, as in Marian.

        Returns:
            A `Shortlist`.

        Raises:
            ValueError: if a number is out of range, the model has no tokenizers, a line
                has another form, or the vocabularies have none of the tokens.
            OSError: if the file cannot be read.
        """
        check_ints(0, frequent_tokens=frequent_tokens)
        check_ints(1, translations_per_token=translations_per_token)
        from keras_transformer.inference.token_pairs import read_lexical_table

        source, target = _tokenizers(model)
        table = read_lexical_table(path, (source, target))
        return cls(
            table.best(source.vocabulary_size, translations_per_token),
            np.arange(min(frequent_tokens, target.vocabulary_size)),
            vocabulary_digests(source, target),
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads the file that `save` has written.

        Args:
            path: path of the file.

        Returns:
            A `Shortlist`.

        Raises:
            ValueError: if it is not such a file.
            OSError: if the file cannot be read.
        """
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                names = [str(name) for name in arrays["vocabularies"]]
                pair = (names[0], names[1]) if names else None
                return cls(arrays["translations"], arrays["frequent_token_ids"], pair)
        except (*_WRONG_FILE, zipfile.BadZipFile) as error:
            raise ValueError(
                f"`path` must be a file that `Shortlist.save` has written; received "
                f"`path={str(path)!r}`. Make one with `Shortlist.from_parallel_text`, "
                "or with the command `keras-transformer shortlist`."
            ) from error

    def save(self, path: str | os.PathLike) -> None:
        """Writes a file, which is complete or does not exist.

        Args:
            path: path of the file, which is replaced if it exists.
        """
        with written_whole(path) as file:
            np.savez_compressed(
                file,
                translations=self.translations,
                frequent_token_ids=self.frequent_token_ids,
                vocabularies=np.array(self.vocabularies or (), "str"),
            )

    def describe(self) -> str:
        """Returns the sizes of the shortlist as a text."""
        rows, count = self.translations.shape
        return (
            f"{rows} source tokens with up to {count} translations, "
            f"{len(self.frequent_token_ids)} frequent target tokens"
        )

    def __repr__(self) -> str:
        return f"<Shortlist: {self.describe()}>"

    def digest(self) -> str:
        """Returns a digest of the shortlist."""
        digest = hashlib.sha256()
        for array in (self.translations, self.frequent_token_ids):
            digest.update(f"{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()[:16]

    def allowed(
        self, model: SequenceModel, rows: SourceRows, others: Sequence[Rows]
    ) -> np.ndarray:
        """Returns the target tokens that the outputs of sources may have.

        Args:
            model: the model.
            rows: lists of token ids, the sources.
            others: lists of token ids for each source that are allowed as well.

        Returns:
            Boolean array `(len(rows), target_vocabulary_size)`.
        """
        mask = np.zeros((len(rows), model.target_vocabulary_size), bool)
        mask[:, self.always_allowed(model)] = True
        for row, source, own in zip(mask, rows, others, strict=True):
            known = np.array([t for t in source if t < len(self.translations)], "int64")
            found = self.translations[known].ravel()
            row[found[found >= 0]] = True
            for token_ids in own:
                row[token_ids] = True
        return mask

    def always_allowed(self, model: SequenceModel) -> np.ndarray:
        """Returns the target tokens of all sources: frequent and special tokens.

        Padding, which a search never chooses, has a probability all the same.

        Args:
            model: the model.

        Returns:
            int32 array `(count,)`.
        """
        special = [model.pad_token_id, model.end_token_id]
        if model.target_tokenizer is not None:
            special.append(model.target_tokenizer.unknown_token_id)
        return np.union1d(self.frequent_token_ids, np.array(special, "int32"))


def _int_array(name: str, values: object, axes: int) -> np.ndarray:
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype("int32")
    if array.ndim != axes or array.dtype.kind not in "iu" or array.min(initial=0) < -1:
        raise ValueError(
            f"`{name}` must be an array of token ids with {axes} axes; received an "
            f"array of shape {array.shape} and dtype {array.dtype}."
        )
    return array.astype("int32")


def _tokenizers(model: SequenceModel) -> "tuple[Tokenizer, Tokenizer]":
    source, target = model.source_tokenizer, model.target_tokenizer
    if source is None or target is None:
        raise ValueError(
            "`model` must have tokenizers to make a shortlist from text; received a "
            "model without. Pass arrays to `Shortlist` instead."
        )
    return source, target


def vocabulary_digests(*tokenizers: Any) -> tuple[str, str]:
    """Returns digests of the vocabularies of the source and the target."""
    source, target = (
        hashlib.sha256(
            "\n".join(tokenizer.get_vocabulary()).encode("utf-8", "surrogatepass")
        ).hexdigest()[:16]
        for tokenizer in tokenizers
    )
    return source, target

"""Scores translations of a validation set during training."""

import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.arguments import check_ints

LONGEST_SAMPLE = 160  # Characters.


class TranslationQuality(keras.callbacks.Callback):
    """Translates a validation set after each epoch and logs BLEU and chrF.

    The logs of the epoch get `val_bleu` and `val_chrf`, sacreBLEU's scores from 0 to
    100, for the callbacks that come later in the list: `EarlyStopping("val_bleu",
    mode="max")`, `ModelCheckpoint`, `CSVLogger`, `TensorBoard`; and for the progress
    bar and the history. Some translations are printed, unless `fit` has `verbose=0`.

    With `every` above 1 the first epoch of a run is translated as well, and the scores
    of the epochs in between are NaN: these callbacks then never take one for the best,
    and columns and file names have them. But `patience` counts all epochs, and
    `EarlyStopping`'s `start_from_epoch` must be one that is translated.

    The model generates with the weights that it has at that moment. To judge the
    moving averages of an optimizer with `use_ema=True`, put
    `keras.callbacks.SwapEMAWeights(swap_on_epoch=True)` before this callback; it
    leaves them in the model until the next epoch begins. The search is compiled in the
    first epoch alone.

    Args:
        sources: list of str, the texts to translate.
        references: list of str, or of lists of str where several answers are right,
            one entry per source.
        search: a search that returns one hypothesis; `None` = the default of
            `Seq2Seq.generate`, a beam of 4. `GreedySearch()` is several times faster.
        every: int >= 1, translates after every so many epochs, and after the first.
        lowercase: bool, whether letter case is ignored (sacreBLEU's `-lc`).
        samples: int >= 0, how many translations to print, starting with the first.
        tokenize: str, how sacreBLEU splits text into words for BLEU: `"zh"` for
            Chinese, `"ja-mecab"` for Japanese; see `evaluation.bleu`.

    Raises:
        ValueError: if an argument has a bad value; from `fit`, if the model has no
            tokenizers, a source is too long for it, or it has no reference.
        TypeError: from `fit`, if a reference is not a str.
        ModuleNotFoundError: if `tokenize` needs a package that is missing.
        OSError: if `tokenize` needs a file that sacreBLEU fails to download.

    Example:

    ```python
    quality = TranslationQuality(valid_sources, valid_references, GreedySearch())
    best = keras.callbacks.ModelCheckpoint(
        "best.keras", monitor="val_bleu", mode="max", save_best_only=True
    )
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=5)
    callbacks = [quality, best, stop]
    model.fit(train.dataset, epochs=40, shuffle=False, callbacks=callbacks)
    ```

    References:
        - [Papineni et al., 2002](https://aclanthology.org/P02-1040) (BLEU)
        - [Popović, 2015](https://aclanthology.org/W15-3049) (chrF)
        - [Post, 2018](https://arxiv.org/abs/1804.08771) (sacreBLEU)
    """

    checkpointed_attributes = ("_has_begun",)

    def __init__(
        self,
        sources: Sequence[str],
        references: Sequence[str | Sequence[str]],
        search: Any = None,
        every: int = 1,
        lowercase: bool = False,
        samples: int = 3,
        tokenize: str = "13a",
    ) -> None:
        super().__init__()
        _check_corpus(sources, references)
        if search is not None and search.num_hypotheses != 1:
            raise ValueError(
                "`search` must give one hypothesis; received a search with "
                f"`num_hypotheses={search.num_hypotheses}`."
            )
        check_ints(1, every=every)
        check_ints(0, samples=samples)
        # Here, so that a missing sacreBLEU shows before an epoch of training.
        from keras_transformer.evaluation import check_tokenize, translation_scores

        check_tokenize(tokenize)
        self._scores = translation_scores
        self.sources = sources
        self.references = references
        self.search = search
        self.every = every
        self.lowercase = lowercase
        self.samples = samples
        self.tokenize = tokenize

    def on_train_begin(self, logs: Any = None) -> None:
        if self.model.source_tokenizer is None:
            raise ValueError(
                "The model must have tokenizers to translate texts; it has none. Give "
                "it `source_tokenizer` and `target_tokenizer`."
            )
        check_lengths(self.model, "sources", self.sources)
        self._has_begun = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._has_begun and (epoch + 1) % self.every:
            logs.update(val_bleu=math.nan, val_chrf=math.nan)
            return
        self._has_begun = True
        translations = self.model.generate(self.sources, search=self.search)
        scores = self._scores(
            translations, self.references, self.lowercase, self.tokenize
        )
        for name, result in scores.items():
            logs[f"val_{name}"] = result.score
        if self.params["verbose"] and self.samples:
            self._print(translations)

    def _print(self, translations: list[str]) -> None:
        lines = []
        rows = zip(self.sources, self.references, translations, strict=True)
        for source, reference, translation in [*rows][: self.samples]:
            right = reference if isinstance(reference, str) else reference[0]
            lines += ["", f"  source:    {_short(source)}"]
            lines += [f"  reference: {_short(right)}"]
            lines += [f"  model:     {_short(translation)}"]
        print(*lines, sep="\n")


def _short(text: str) -> str:
    """What an untrained model says can be as long as it may be."""
    return text if len(text) <= LONGEST_SAMPLE else f"{text[: LONGEST_SAMPLE - 1]}…"


def check_lengths(
    model: Any, argument: str, sources: Sequence[str], option: str = "max_source_length"
) -> None:
    """Rejects texts that are too long to translate, before hours of training.

    Args:
        model: a `Seq2Seq` with tokenizers.
        argument: name of the argument with the texts, for the error message.
        sources: list of str.
        option: name of the option with the limit, for the error message.

    Raises:
        ValueError: if a text has more tokens than the model's `max_source_length`.
    """
    limit = model.max_source_length
    rows = model.source_tokenizer.tokenize(list(sources), add_end=True)
    for number, length in enumerate(rows.row_lengths().numpy(), start=1):
        if limit is not None and length > limit:
            raise ValueError(
                f"`{argument}` must have at most `{option}={limit}` tokens a line; "
                f"received {length} in line {number}. Shorten or split it, or give a "
                f"greater `{option}`."
            )


def _check_corpus(sources: Any, references: Any) -> None:
    for name, value in (("sources", sources), ("references", references)):
        if isinstance(value, str) or not len(value):
            raise ValueError(
                f"`{name}` must be a list with one entry a sentence, of at least one "
                f"sentence; received `{name}={value!r}`."
            )
    if len(sources) != len(references):
        raise ValueError(
            f"`references` must have one entry for each of the {len(sources)} sources; "
            f"received `len(references)={len(references)}`."
        )

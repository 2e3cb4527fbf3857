"""The engines of a run: translation of the validation text, and export."""

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import ctranslate2
import numpy as np

from keras_transformer.decoding import Search
from keras_transformer.decoding.generation_options import options_from_search
from keras_transformer.export.ctranslate2 import (
    check_supported,
    export_ctranslate2,
    write_ctranslate2,
)
from keras_transformer.keras_engine import KerasEngine
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.plan import Plan
from keras_transformer.recipe.task import Evaluator
from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.model_description import ModelDescription


class ValidationEngine:
    """Opens a model with its current weights as an engine.

    CTranslate2 compiles nothing and decodes faster on a CPU. The weights are handed
    over in a temporary folder.
    """

    def __init__(self, name: str, output: pathlib.Path) -> None:
        self.name = name  # "keras" or "ctranslate2"
        self._output = output  # the folder of the run

    @contextlib.contextmanager
    def of(self, model: GenerativeModel) -> Iterator[Engine]:
        """Yields the engine, which is used within the context."""
        if self.name == "keras":
            yield KerasEngine(model, self._output)
            return
        with tempfile.TemporaryDirectory(prefix="keras_transformer-") as folder:
            options = options_from_search(model.default_search)
            write_ctranslate2(model, pathlib.Path(folder), options)
            yield CTranslate2Engine.load(folder, parallel=True)

    def translate(
        self, model: GenerativeModel, texts: Sequence[str], search: Search | None
    ) -> tuple[list[str], np.ndarray]:
        """Returns the best hypotheses, and which have reached the maximum length."""
        options = options_from_search(search or model.default_search)
        with self.of(model) as engine:
            best = [row[0] for row in engine.generate(texts, options)]
        truncated = np.array([each.truncated for each in best], bool)
        return [each.text for each in best], truncated


def can_export(model: GenerativeModel) -> bool:
    """Returns whether CTranslate2 supports a model."""
    try:
        check_supported(model)
    except ValueError:
        return False
    return True


def export_with_own_search(
    model: GenerativeModel,
    search: Search,
    evaluator: Evaluator,
    folder: pathlib.Path,
    languages: Sequence[str] | None = None,
) -> str:
    """Writes the folder of a run for CTranslate2, in place of an older one.

    The length penalty is that chosen for CTranslate2, whose penalty differs from that
    of `BeamSearch`. Returns a description of the choice.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    texts = evaluator.check_texts
    export_ctranslate2(
        model, unfinished, search, check_texts=texts, languages=languages
    )
    chosen = evaluator.search_of(CTranslate2Engine.load(unfinished, parallel=True))
    description = ModelDescription.read(unfinished)
    dataclasses.replace(
        description, options=chosen.options, scores=chosen.scores
    ).write(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return chosen.description


def choose_validation_engine(plan: Plan, model: GenerativeModel) -> None:
    """Chooses CTranslate2 on a CPU if it supports the model."""
    if plan["valid_engine"] == "ctranslate2":
        check_supported(model)
        return
    reason = _reason_against_ctranslate2(plan, model)
    if reason is None:
        plan.choose("valid_engine", "ctranslate2", "faster on a CPU")
    else:
        plan.choose("valid_engine", "keras", reason)


def _reason_against_ctranslate2(plan: Plan, model: GenerativeModel) -> str | None:
    if ctranslate2.get_cuda_device_count():
        return "on a GPU"
    if plan["devices"] * plan["workers"] > 1:
        return "on several devices"
    return None if can_export(model) else "CTranslate2 does not support the model"

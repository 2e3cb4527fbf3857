"""Checks of a recipe that require neither Keras nor the content of its texts."""

import os
import pathlib
import sys

from keras_transformer_runtime.arguments import (
    check_character_coverage,
    check_one_of,
    normalization_rule,
)
from keras_transformer_runtime.model_paths import find_model
from keras_transformer_runtime.packages import require_extra, require_modules
from keras_transformer_runtime.presets import PRESETS
from keras_transformer_runtime.runs.contradictions import (
    check_agree,
    check_heads,
    check_one_length,
)
from keras_transformer_runtime.runs.folder import (
    check_same_texts,
    is_complete,
    latest_position,
    recipe_to_resume,
)
from keras_transformer_runtime.runs.label_recipe import LabelRecipe
from keras_transformer_runtime.runs.option_checks import DTYPES
from keras_transformer_runtime.runs.recipe import Recipe
from keras_transformer_runtime.text_rows import TextRows


def check_early(recipe: Recipe) -> None:
    """Checks a recipe before the first slow import."""
    if recipe.members > 1 and not is_complete(recipe):
        _check_members_folder(recipe)
        recipe = (recipe.teacher() if recipe.distill else recipe).member(1)
    require_extra("tensorflow", "A training run")
    require_modules(["ctranslate2"], "A training run")
    check_one_of(PRESETS, optional=True, preset=recipe.preset)
    check_one_of(DTYPES, dtype=recipe.dtype)
    check_one_length(recipe)
    _check_devices(recipe)
    normalization_rule(recipe.normalization, recipe.lowercase)
    check_character_coverage(recipe.character_coverage)
    if recipe.model == "seq2seq":
        from keras_transformer_runtime.bleu import bleu_metric  # imports sacreBLEU

        bleu_metric(False, recipe.bleu_tokenize)
    if recipe.lora is not None:
        require_extra("hub", f"`lora={recipe.lora}`")  # safetensors
    check_is_folder(recipe.output)
    if is_complete(recipe):
        check_same_texts(recipe)
        return
    is_new = recipe_to_resume(recipe) is None
    if is_new:
        check_agree(recipe)
    for name in ("train", "valid", "test"):
        _check_files(recipe, name)
    if not is_new:
        check_same_texts(recipe)
    elif recipe.start_from:
        _check_start(recipe.start_from)


def check_early_labels(recipe: LabelRecipe) -> None:
    """Checks the recipe of a classifier before the first slow import."""
    require_extra("tensorflow", "A training run")
    if recipe.export and recipe.export_format != "saved_model":
        require_extra("onnx", f"`export_format={recipe.export_format!r}`")
    check_is_folder(recipe.output)
    check_heads(recipe.preset, recipe.hidden_dim, recipe.num_heads, recipe.positions)
    for name in ("train", "valid", "test"):
        value = vars(recipe)[name]
        if isinstance(value, str) and not os.path.isfile(value):
            problem = "is a folder" if os.path.isdir(value) else "does not exist"
            raise FileNotFoundError(
                f"`{name}` must be a file that exists; received `{name}={value!r}`, "
                f"which {problem}."
            )
    if recipe.start_from and not os.path.exists(
        os.path.join(recipe.start_from, "config.json")
    ):
        _check_start(recipe.start_from)


def check_is_folder(output: str) -> None:
    """Raises `ValueError` if the folder of a run is a file."""
    if os.path.exists(output) and not os.path.isdir(output):
        raise ValueError(
            f"`output` must be a folder; received `output={output!r}`, which is a file."
        )


def _check_members_folder(recipe: Recipe) -> None:
    """Raises `ValueError` if the folder of an ensemble is that of one model."""
    if not recipe.distill and latest_position(recipe.output) is not None:
        raise ValueError(
            "`output` must be a new folder, or that of an ensemble, with several "
            f"`members`; received {recipe.output}, which has the checkpoints of one "
            "model. Choose another folder."
        )


def _check_devices(recipe: Recipe) -> None:
    """Raises an error if the backend does not train on these devices."""
    keras = sys.modules.get("keras")
    backend = keras.backend.backend() if keras else os.environ.get("KERAS_BACKEND")
    backend = backend or "tensorflow"
    of_jax = ["model_parallel"] if backend == "torch" else ["workers", "model_parallel"]
    for name in of_jax:
        number = getattr(recipe, name)
        if number > 1 and backend != "jax":
            raise ValueError(
                f"`{name}` above 1 must be used on JAX{_OTHER.get(name, '')}; received "
                f"`{name}={number}` and the backend {backend!r}. Set KERAS_BACKEND=jax."
            )
    if backend == "tensorflow" and recipe.devices > 1 and recipe.clip_norm is not None:
        raise ValueError(
            "`clip_norm` must be None with several devices on TensorFlow, since Keras "
            "clips the gradients of each device before it adds them; received "
            f"`clip_norm={recipe.clip_norm}`, `devices={recipe.devices}`. Set "
            "KERAS_BACKEND=jax."
        )
    if recipe.workers > 1:
        require_extra("distributed", "`workers` above 1")
    if recipe.devices > 1 and backend == "torch":
        require_extra("distributed", "`devices` above 1 on PyTorch")


_OTHER = {"workers": " or PyTorch"}


def _check_files(recipe: Recipe, name: str) -> None:
    """Raises an error if a file of a text does not exist, or not its columns."""
    width = 1 if recipe.has_running_text else 2
    for corpus in recipe.corpora(name):
        for file in corpus.files:
            path = pathlib.Path(file)
            if not path.is_file():
                problem = "is a folder" if path.is_dir() else "does not exist"
                raise FileNotFoundError(
                    f"`{name}` must be files that exist; received "
                    f"`{name}={vars(recipe)[name]!r}`, where {file} {problem}."
                )
            if width == 1 or len(corpus.files) == 1:
                TextRows.of(file, recipe.columns, width)


def _check_start(start: str) -> None:
    """Raises an error if the initial model does not exist, or cannot be downloaded."""
    if "://" not in start:
        find_model(pathlib.Path(start))
    elif start.startswith("hf://"):
        require_extra("hub", f"`start_from={start!r}`")

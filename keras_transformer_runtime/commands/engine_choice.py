"""Chooses the engine of a command: `--engine`."""

import enum
import pathlib
from collections.abc import Mapping
from typing import Annotated

import typer

from keras_transformer_runtime.commands.messages import print_message
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import GivenOptions
from keras_transformer_runtime.engines.model_description import FILE
from keras_transformer_runtime.model_paths import find_model, saved_model_of
from keras_transformer_runtime.packages import require_extra
from keras_transformer_runtime.runs.folder import selected_options
from keras_transformer_runtime.tensorflow_import import import_tensorflow_quietly


class EngineName(enum.StrEnum):
    """The values of `--engine`."""

    auto = "auto"
    ctranslate2 = "ctranslate2"
    saved_model = "saved_model"
    keras = "keras"


EngineOption = Annotated[
    EngineName,
    typer.Option(
        help="Software that decodes. auto: of a run, CTranslate2 on a CPU if the run "
        "has a folder for it and it supports the options, otherwise Keras; of another "
        "folder or file, its own."
    ),
]


def open_engine(
    context: typer.Context,
    path: pathlib.Path,
    name: EngineName,
    given: GivenOptions,
    *,
    prefix: bool = False,
    keras_options: Mapping[str, bool] | None = None,
    many_texts: bool = False,
    verbose: bool = True,
) -> Engine:
    """Opens a model with an engine, and says which one was chosen for a run.

    Args:
        context: the context of the command, for the names of its options.
        path: a `.keras` file, or the folder of a run, a preset, a SavedModel or a
            model of CTranslate2.
        name: the engine.
        given: the options of the command.
        prefix: bool, whether the outputs have a given beginning.
        keras_options: options of the command that only Keras supports, by name, and
            whether they are given.
        many_texts: bool, whether the speed of many texts matters.
        verbose: bool, whether the choice is printed.

    Raises:
        ValueError: if there is no such engine for the model, or it does not support an
            option.
    """
    folders = model_folders(path)
    of_keras = [option for option, used in (keras_options or {}).items() if used]
    if name != EngineName.auto:
        if name.value not in folders:
            raise ValueError(_missing(path, name, [*folders]))
        return _opened(
            name.value, folders[name.value], given, prefix, of_keras, many_texts
        )
    if len(folders) == 1 or "ctranslate2" not in folders:
        # A SavedModel of a run is for `serve` and TensorFlow Serving.
        kind = "keras" if "keras" in folders else next(iter(folders))
        return _opened(kind, folders[kind], given, prefix, of_keras, many_texts)
    reason = _reason_against_ctranslate2(of_keras)
    if reason is None:
        engine = _load("ctranslate2", folders["ctranslate2"], many_texts)
        reason = engine.refusal(engine.options.with_given(**given), prefix)
        if reason is None:
            if verbose:
                typer.echo(f"Engine: CTranslate2, {engine.path}", err=True)
            return engine
    if verbose:
        print_message(context, f"Engine: Keras. {reason}")
    return _load("keras", folders["keras"], many_texts)


def model_folders(path: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the files and folders of a model by the name of the engine."""
    if (path / "model.bin").is_file():
        return {"ctranslate2": path}
    saved_model = saved_model_of(path)
    if saved_model is not None:
        return {"saved_model": saved_model}
    folders = {"keras": find_model(path)}
    if folders["keras"] != path:  # a run
        folders["keras"] = path
        if (path / "ctranslate2" / FILE).is_file():
            folders["ctranslate2"] = path / "ctranslate2"
        saved_model = saved_model_of(path / "saved_model")
        if saved_model is not None:
            folders["saved_model"] = saved_model
    return folders


def _reason_against_ctranslate2(of_keras: list[str]) -> str | None:
    if of_keras:
        return f"`{of_keras[0]}` requires it."
    require_extra("ctranslate2", "The engine CTranslate2")
    import ctranslate2

    if ctranslate2.get_cuda_device_count():
        return "The machine has a GPU. `--engine ctranslate2` selects CTranslate2."
    return None


def _opened(
    kind: str,
    path: pathlib.Path,
    given: GivenOptions,
    prefix: bool,
    of_keras: list[str],
    many_texts: bool,
) -> Engine:
    """Loads a model, and checks that its engine supports the options."""
    if of_keras and kind != "keras":
        raise ValueError(
            f"`{of_keras[0]}` requires the engine Keras; received {path}, a model for "
            f"the engine {kind}. Give a run or a .keras file, or remove the option."
        )
    engine = _load(kind, path, many_texts)
    engine.check(engine.options.with_given(**given), prefix)
    return engine


def _load(kind: str, path: pathlib.Path, many_texts: bool) -> Engine:
    if kind == "ctranslate2":
        require_extra("ctranslate2", "The engine CTranslate2")
        from keras_transformer_runtime.engines.ctranslate2_engine import (
            CTranslate2Engine,
        )

        return CTranslate2Engine.load(path, parallel=many_texts)
    if kind == "saved_model":
        import_tensorflow_quietly()
        from keras_transformer_runtime.engines.saved_model_engine import (
            SavedModelEngine,
        )

        return SavedModelEngine.load(path)
    from keras_transformer_runtime.commands.startup import import_keras_quietly

    import_keras_quietly()
    from keras_transformer.keras_engine import KerasEngine
    from keras_transformer.recipe.loading import load_trained_model

    return KerasEngine(load_trained_model(path), path, selected_options(path))


def _missing(path: pathlib.Path, name: EngineName, found: list[str]) -> str:
    remedy = f"Use `--engine {found[0]}`."
    if "keras" in found:
        folder = path / name.value if path.is_dir() else path.with_suffix("")
        remedy += (
            f" To export it: keras-transformer export {path} {folder} --format "
            f"{name.value}"
        )
    return f"{path} must have a model for `engine={name.value}`; it has none. {remedy}"

"""Training on text, as `keras-transformer train` does."""

import contextlib
import pathlib
from collections.abc import Iterator

from keras_transformer.backend.sharding import add_virtual_devices
from keras_transformer.distribution import distribute
from keras_transformer.recipe.members import train_members
from keras_transformer.recipe.preparation import prepare
from keras_transformer.recipe.result import TrainingResult, read_result
from keras_transformer.recipe.stages import finish, fit, print_figures
from keras_transformer.recipe.workers import needs_workers, train_with_workers
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.runs.early_checks import check_early
from keras_transformer_runtime.runs.folder import is_complete
from keras_transformer_runtime.runs.recipe import Recipe


def train(recipe: Recipe) -> TrainingResult:
    """Trains a model on text, as `keras-transformer train` does.

    The function chooses the options that are not given from the training text, learns a
    vocabulary and trains the model. It compares the weights of the last epoch, those of
    the best epoch and the mean of the last epochs by `recipe.metric` on the validation
    text, and keeps the best. It selects the length penalty by the same metric (by BLEU
    if it is `"loss"`); a language model has none. If a run was stopped, calling `train`
    with the same options resumes it at the batch where it stopped, with equal losses.
    If the run is complete, its model and figures are read.

    The trained model is a float32 model for any `recipe.dtype`. If `recipe.dtype` is
    float32, it is compiled and has the state of the optimizer. With
    `recipe.start_from`, the run starts with the weights, vocabularies and configuration
    of a trained model. With `recipe.lora` as well, it trains low-rank updates of its
    kernels alone; the resulting model has the merged kernels and is not compiled.

    The folder `recipe.output` then contains:

    - `model.keras`, the model,
    - `figures.json`, the scores,
    - `options.toml`, all options, to repeat the run,
    - `checksums.json`, the CRC-32 of each text: a run whose text has changed is not
      resumed,
    - `history.csv`, losses and metrics of each epoch,
    - `tokenizer.json`, or `source_tokenizer.json` and `target_tokenizer.json`; with
      `recipe.start_from`, `initial.keras` instead,
    - `data/`, with the training, validation and test texts, if some are held out,
    - `adapter/`, the updates alone, with `recipe.lora`,
    - `checkpoints/`,
    - `saved_model/`, with a new version in it, and `ctranslate2/`, if `recipe.export`
      is true, as `recipe.export_format` says.

    Args:
        recipe: the options, a `Recipe`.

    Returns:
        A `TrainingResult` with the attributes `model`, `search` and `figures`.

    Raises:
        ValueError: if an option has an invalid value, or if the folder contains a run
            of other options on which the weights depend, or of other texts. The error
            names the option.
        FileNotFoundError: if a text or the initial model does not exist.
        ModuleNotFoundError: if an option requires a package that is not installed.

    Example:

    ```python
    from keras_transformer.recipe import Recipe, train

    recipe = Recipe(train=train_files, valid=valid_files, output="runs/en-de")
    model, search, figures = train(recipe)
    model.generate(["A man sleeps."], search)
    ```
    """
    check_early(recipe)
    output = pathlib.Path(recipe.output)
    display = Display(recipe.verbose)
    if is_complete(recipe):
        result = read_result(output)
        display.print(f"The run in {output} is complete.")
        print_figures(result.figures, recipe, display)
        return result
    if recipe.members > 1:
        return train_members(recipe, train, display)
    if needs_workers(recipe):
        train_with_workers(recipe, display)
        return read_result(output)
    with _distributed(recipe, display):
        prepared = prepare(recipe, display)
        fit(prepared, display)
        return finish(prepared, display)


@contextlib.contextmanager
def _distributed(recipe: Recipe, display: Display) -> Iterator[None]:
    if recipe.devices == 1:
        yield
        return
    add_virtual_devices(recipe.devices)
    with distribute(recipe.devices, recipe.model_parallel) as names:
        if all("cpu" in name.lower() for name in names):
            display.print(
                f"{recipe.devices} virtual devices share one CPU, to try what several "
                "devices do: training is not faster than with --devices 1."
            )
        yield

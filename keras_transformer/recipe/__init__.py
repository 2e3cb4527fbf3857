"""A training run described by its options: from text to a trained model.

`Recipe` contains the options, which a run saves in `options.toml`. `train` executes the
run. `LabelRecipe` and `train_labels` do the same for classifiers of texts and words.
The command `keras-transformer train` parses the options and calls them. The section
"The whole run" of `docs/training.md` has the same steps as code to adapt.
"""

from keras_transformer_runtime.packages import require_extra, require_modules

require_extra("tensorflow", "`keras_transformer.recipe`")
require_modules(["ctranslate2"], "`keras_transformer.recipe`")

from keras_transformer.recipe.label_training import (
    LabelFigures,
    LabelResult,
    train_labels,
)
from keras_transformer.recipe.result import (
    Figures,
    LanguageModelFigures,
    TrainingResult,
)
from keras_transformer.recipe.run import train
from keras_transformer_runtime.runs.label_recipe import LabelRecipe
from keras_transformer_runtime.runs.recipe import Recipe, read_options

__all__ = [
    "Figures",
    "LabelFigures",
    "LabelRecipe",
    "LabelResult",
    "LanguageModelFigures",
    "Recipe",
    "TrainingResult",
    "read_options",
    "train",
    "train_labels",
]

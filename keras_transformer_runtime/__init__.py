"""What needs neither Keras nor a backend, in the same distribution.

`import keras_transformer` imports Keras, which takes seconds. This package imports
neither Keras nor `keras_transformer`, so that the command answers `--help` and wrong
options at once. `keras_transformer` imports it, and not the other way round: only the
functions of `commands` import `keras_transformer`, when a command runs.

The modules, in the order of imports; each imports only those after it:

- `command`: the command `keras-transformer`, a table of its commands
- `commands`: their options, and what each does
- `runs`: the options of a training run, and the files in its folder
- `labels`: labelled texts and tagged words of files, and scores of predicted labels
- `model_paths`: finds the file of a trained model, and versions of a SavedModel
- `bleu`: the BLEU metric of sacreBLEU, and the errors of its tokenizers
- `display`: the progress of long tasks in a terminal or a log file
- `arguments`: checks of arguments
- `files`: atomic writes, locks, JSON and TOML
- `hub`: downloads from the Hugging Face Hub
- `packages`: the required packages, and the advice to install them
- `presets`: named sizes of models
"""

__version__ = "0.2.0"

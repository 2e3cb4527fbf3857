"""The commands of `keras-transformer`, a module each.

A command is a function with its options, in the order of these modules:

- `train`, `translate`, `generate`, `evaluate`, `inspect`, `serve`
- `model_files`: `export` and `import`
- `describe_models`, `describe_runs`: what `inspect` prints
- `parameters`: options that several commands have
- `messages`: errors, warnings and interruptions
- `startup`: imports Keras without TensorFlow's log
"""

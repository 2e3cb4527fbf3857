"""The options of a training run, and the files in its folder.

- `recipe`: the options, `Recipe`, and their TOML file
- `early_checks`: what can be wrong with them before Keras is imported
- `option_checks`: the values that they may have
- `folder`: the folder of a run: its progress and its result
- `run_position`: positions of a run, and the names of its checkpoint files
"""

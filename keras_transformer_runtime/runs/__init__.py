"""The options of a training run, and the files in its folder.

- `recipe`: the options, `Recipe`
- `early_checks`: what can be wrong with them before Keras is imported
- `option_checks`: the values that they may have
- `options_file`: their TOML file
- `folder`: the folder of a run: its progress and its result
- `run_position`: positions of a run, and the names of its checkpoint files
"""

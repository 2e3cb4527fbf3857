"""Settings of rotary positions."""

from keras_transformer.layers import PositionScheme, RotaryEmbedding
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import check_one_of, check_positive

THETA = 10000.0
# Names of transformers' settings, and of the entries of `RotaryEmbedding.scaling`.
ENTRIES = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_length",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}


def positions_of_config(config: Config, complete: Config) -> RotaryEmbedding:
    """Creates the positions: of `rope_parameters`, or of the older settings."""
    theta = config.get("rope_theta", THETA)
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise ValueError(
            "`rope_parameters` in config.json must be a dictionary or null; received "
            f"`rope_parameters={parameters!r}`."
        )
    parameters = dict(parameters)
    theta = parameters.pop("rope_theta", None) or theta or THETA
    check_positive(**{"rope_theta in config.json": theta})
    kind = parameters.pop("rope_type", None) or parameters.pop("type", None)
    parameters.pop("type", None)
    if parameters.get("partial_rotary_factor") == 1.0:
        del parameters["partial_rotary_factor"]
    if kind in (None, "default"):
        return RotaryEmbedding(theta)
    kinds = ("default", "linear", "dynamic", "yarn", "llama3")
    check_one_of(kinds, **{"rope_type in config.json": kind})
    for name in parameters:
        check_one_of(ENTRIES, **{f"a setting of rope_type {kind!r}": name})
    scaling: Config = {ENTRIES[n]: value for n, value in parameters.items()}
    if kind == "linear":
        scaling.pop("original_max_length", None)
    elif scaling.get("original_max_length") is None:
        scaling["original_max_length"] = complete["max_position_embeddings"]
    return RotaryEmbedding(theta, scaling={"type": kind, **scaling})


def config_of_positions(positions: PositionScheme) -> Config:
    """Returns the settings of positions, or the defaults for another scheme."""
    if not isinstance(positions, RotaryEmbedding):
        return {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
    scaling = dict(positions.scaling or {"type": "default"})
    kind = scaling.pop("type")
    names = {ours: theirs for theirs, ours in ENTRIES.items()}
    theta = positions.max_wavelength
    parameters = {names[name]: value for name, value in scaling.items()}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}

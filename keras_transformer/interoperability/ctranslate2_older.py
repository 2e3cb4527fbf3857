"""Models of CTranslate2's older formats: other names, and no config.json."""

from typing import Any

from keras_transformer.interoperability.ctranslate2_file import SIDES, Variables

SPECIFICATION = "TransformerSpec"
# Of the first specifications, which had a name for each number of heads.
NUM_HEADS = {"TransformerBase": 8, "TransformerBig": 16}
# Settings that both sides shared, and the names they have today.
SHARED = {
    f"{side}/{name}": name
    for side in SIDES
    for name in (
        "num_heads",
        "pre_norm",
        "activation",
        "embeddings_merge",
        "alignment_layer",
        "alignment_heads",
    )
}
ONE_SOURCE = {"encoder/embeddings_0/weight": "encoder/embeddings/weight"}


def add_current_names(variables: Variables) -> None:
    """Lets the variables and the specification go by their current names, too."""
    if variables.name in NUM_HEADS:
        variables.add("num_heads", NUM_HEADS[variables.name])
        variables.name = SPECIFICATION
    for name, older in {**SHARED, **ONE_SOURCE}.items():
        variables.add_alias(name, older)


def old_config(variables: Variables) -> dict[str, Any]:
    """Reads from the variables what is in config.json today."""
    tokens = {
        name: variables.text(name, usual)
        for name, usual in {"bos_token": "<s>", "eos_token": "</s>"}.items()
    }
    start = "bos_token" if variables.scalar("with_target_bos", 1) else "eos_token"
    by_user = variables.scalar("user_decoder_start_tokens", 0)
    return {
        **tokens,
        "decoder_start_token": None if by_user else tokens[start],
        "add_source_bos": bool(variables.scalar("with_source_bos", 0)),
    }

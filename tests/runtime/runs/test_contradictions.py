"""Options that contradict each other, and those that a run itself has written."""

import pytest

from keras_transformer_runtime.presets import PRESETS
from keras_transformer_runtime.runs.contradictions import (
    check_agree,
    check_heads,
    check_one_length,
)
from keras_transformer_runtime.runs.recipe import Recipe

pytestmark = pytest.mark.once("torch")

FILES = {"train": ["a.en", "a.de"], "output": "runs/a"}
BYTES = {"tokenizer": "bytes"}
CAUSAL = {"model": "causal"}
WORDS = {"source_tokenizer": "words", "target_tokenizer": "characters"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_heads": 5, "hidden_dim": 256},
            "`num_heads` must divide the width of the model; received "
            "`hidden_dim=256`, `num_heads=5`",
        ),
        (
            {"num_heads": 5, "preset": "transformer_base"},
            "received `preset='transformer_base'`, `num_heads=5`, a width of 512",
        ),
        ({"num_heads": 3}, "`num_heads=3`, presets of 128, 256, 512, 1024"),
        (
            {"num_heads": 4, "hidden_dim": 20, "positions": "rotary"},
            "give each head an even width for `positions='rotary'`; .* multiple of 8",
        ),
        ({**CAUSAL, "num_heads": 4, "hidden_dim": 20}, "an even width"),
        ({"warmup_steps": 8, "steps": 7}, "`warmup_steps` must be at most `steps`; r"),
        ({"cooldown": 3, "epochs": 2}, "`cooldown=3`, `epochs=2`"),
        ({"average": 3, "epochs": 2}, "`average` must be at most `epochs`"),
        ({"metric_every": 3, "epochs": 2}, "The metric would not be computed."),
        (
            {**CAUSAL, "length": 65, "tokens_per_batch": 64},
            "`length` must be at most `tokens_per_batch`; received `length=65`",
        ),
        (
            {"schedule": "cosine", "cooldown": 2},
            "`cooldown` must be 0, or not given, with a `schedule` that falls to 0",
        ),
        ({"schedule": "linear", "cooldown": 2}, "`cooldown=2`, `schedule='linear'`"),
        ({"patience": 2, "metric_every": 3}, "`patience=2`, `metric_every=3`"),
        ({"r_drop": 5.0, "dropout": 0.0}, "`r_drop` must be 0 without dropout"),
        ({**BYTES, "vocabulary_size": 300}, "must be 260, or not given, for bytes"),
        (
            {"target_tokenizer": "bytes", "target_vocabulary_size": 300},
            "`target_vocabulary_size` must be 260",
        ),
        ({**BYTES, "subword_sampling": 0.1}, "`subword_sampling` must not be given w"),
        ({**WORDS, "character_coverage": 0.99}, "with tokenizers without subwords"),
        ({**WORDS, "user_defined_symbols": ["<a>"]}, "`user_defined_symbols` must not"),
        (
            {**CAUSAL, "tokenizer": "words", "byte_fallback": True},
            "`byte_fallback=True",
        ),
        (
            {"vocabularies": "joint", "target_vocabulary_size": 7},
            "must not be given with `vocabularies='joint'`.* Use `vocabulary_size`.",
        ),
        (
            {"vocabularies": "joint", **WORDS},
            "`vocabularies` must be 'separate' unless",
        ),
    ],
)
def test_contradictions(options, message):
    with pytest.raises(ValueError, match=message):
        check_agree(Recipe(**FILES, **options))


def test_two_lengths_of_a_run():
    message = "`epochs` must not be given with `steps`; received `epochs=2`, `steps=9`"
    with pytest.raises(ValueError, match=message):
        check_one_length(Recipe(**FILES, epochs=2, steps=9))


@pytest.mark.parametrize(
    "options",
    [
        {},
        CAUSAL,
        {"num_heads": 5, "hidden_dim": 25},
        {"hidden_dim": 48},  # of presets with 4, 8 and 16 heads
        {"warmup_steps": 7, "steps": 7, "schedule": "cosine", "cooldown": 0},
        {"patience": 1, "metric_every": 2, "metric": "loss"},
        {"r_drop": 5.0, "dropout": 0.0, "attention_dropout": 0.1},
        {**BYTES, "vocabulary_size": 260},
        {"source_tokenizer": "bytes", "vocabulary_size": 300},
        {"source_tokenizer": "words", "subword_sampling": 0.1},
        {**WORDS, "vocabulary_size": 9, "vocabularies": "separate"},
    ],
)
def test_options_that_agree(options):
    check_agree(Recipe(**FILES, **options))


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_presets_agree_with_themselves(preset):
    check_heads(preset, None, None, "rotary")

"""`Seq2Seq`, trained as in the README."""

from typing import Any

import keras

import keras_transformer as kt
from training_sides.devices import allow_tf32
from training_sides.keras_fit import adam, as_dataset, fit
from training_sides.setting import Setting, Train


def build(setting: Setting, jit_compile: Any = "auto") -> Train:
    model = compiled_model(setting, jit_compile)
    return lambda batches, done: fit(model, as_dataset(batches), done)


def compiled_model(setting: Setting, jit_compile: Any = "auto") -> keras.Model:
    if keras.backend.backend() == "torch":
        allow_tf32()
    model = kt.Seq2Seq.from_preset(
        f"transformer_{setting.size}",
        normalize_first=True,
        dropout=setting.dropout,
        attention_options=(
            None
            if setting.attention_dropout is None
            else {"dropout": setting.attention_dropout}
        ),
        vocabulary_size=setting.vocabulary_size,
        dtype=setting.dtype,
    )
    model.compile(
        optimizer=adam(),
        loss=kt.LabelSmoothedCrossEntropy(setting.label_smoothing),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
        jit_compile=jit_compile,
    )
    return model

"""Calls models in a pipeline over four virtual devices of JAX; prints figures as JSON.

`test_pipeline` runs it as a process: JAX must not have started before the number of
devices is set.
"""

import json
import os
import pathlib
import re
import tempfile
import types

import jax
import keras
import numpy as np
from devices import error
from keras import ops

import keras_transformer as kt

ROWS, PARTS = 8, 2
SIZES = {
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "vocabulary_size": 12,
    "normalize_first": True,
}
LOSS = kt.LabelSmoothedCrossEntropy(0.1)  # in float32


def examples():
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 12, (ROWS, 5)).astype("int32")
    ids[::3, 3:] = 0
    targets = rng.integers(4, 12, (ROWS, 6)).astype("int32")
    targets[1::2, 4:] = 0
    return {"encoder_token_ids": ids, "decoder_token_ids": targets}, targets


def difference(some, others):
    """The greatest absolute difference of the arrays of two lists."""
    pairs = zip(some, others, strict=True)
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def in_parts(model, inputs):
    """The logits of a model whose blocks get one part of the rows after another.

    Without rematerialization, which changes no value.
    """
    model.encoder.rematerialize = model.decoder.rematerialize = False
    source = inputs["encoder_token_ids"]
    x, _ = model.embed_source(source, training=True)
    masks = np.split(source != 0, PARTS)
    parts = zip(ops.split(x, PARTS), masks, strict=True)
    encoded = [model.encoder(x, padding_mask=m, training=True) for x, m in parts]
    x = model.embed_target(inputs["decoder_token_ids"], training=True)
    parts = zip(ops.split(x, PARTS), encoded, masks, strict=True)
    decoded = [
        model.decoder(x, source, encoder_padding_mask=m, training=True)
        for x, source, m in parts
    ]
    return model.compute_logits(ops.concatenate(decoded))


def stacked(model, variables, values):
    """Values of variables, those of the blocks of a stack in one array."""
    by_id = {id(v): value for v, value in zip(variables, values, strict=True)}
    for stack in (model.encoder, model.decoder):
        blocks = [block.variables for block in stack.blocks]
        for first, *others in zip(*blocks, strict=True):
            if id(first) in by_id:
                rest = [by_id.pop(id(variable)) for variable in others]
                by_id[id(first)] = np.stack([by_id[id(first)], *rest])
    return list(by_id.values())


def gradients():
    """Gradients and seeds, with dropout and rematerialization, of two routes."""
    keras.utils.set_random_seed(3)
    options = {"dropout": 0.3, "rematerialize": True, "dtype": "float64"}
    model = kt.Seq2Seq(num_layers=4, **options, **SIZES)
    inputs, _ = examples()
    pipeline = kt.Pipeline(model, devices=4, micro_batches=PARTS)
    variables = model.trainable_variables, model.non_trainable_variables
    values = [[v.value for v in each] for each in variables]

    def plain(trainable, others):
        mapping = [*zip(variables[0] + variables[1], trainable + others, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            logits = in_parts(model, inputs)
        drawn = [scope.get_current_value(v) for v in variables[1]]
        return ops.mean(ops.square(logits)), drawn

    def piped(trainable, others):
        logits, others = pipeline.stateless_call(
            trainable, others, inputs, training=True
        )
        return ops.mean(ops.square(logits)), others

    several, one = (
        jax.jit(jax.value_and_grad(function, has_aux=True))(*arguments)
        for function, arguments in ((piped, pipeline.values()), (plain, values))
    )
    (loss, seeds), found = several
    (expected, expected_seeds), expected_gradients = one
    before = stacked(model, variables[1], values[1])
    differences = {True: [], False: []}  # of the gradients of the blocks, and of others
    expected_gradients = stacked(model, variables[0], expected_gradients)
    for value, *pair in zip(
        pipeline.values()[0], found, expected_gradients, strict=True
    ):
        differences[any(value.sharding.spec)].append(difference(pair[:1], pair[1:]))
    return {
        "loss": abs(float(loss) - float(expected)),
        "blocks": max(differences[True]),
        "others": max(differences[False]),
        "greatest_gradient": max(float(np.abs(each).max()) for each in found),
        "seeds": difference(seeds, stacked(model, variables[1], expected_seeds)),
        "drawn": difference(seeds, before),
        "divided": len(differences[True]),
        "whole": len(differences[False]),
        "bubble": pipeline.bubble,
    }


def outputs_of(model, **options):
    """The difference of the outputs of a pipeline and of the model."""
    inputs = examples()[0]["decoder_token_ids"]
    pipeline = kt.Pipeline(model, **options)
    found, _ = jax.jit(pipeline.stateless_call)(*pipeline.values(), inputs)
    return difference([found], [model(inputs)])


def documented_code():
    """Runs the code of the page with a small model; returns its losses."""
    page = (pathlib.Path(kt.__file__).parents[1] / "docs/scaling.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "kt.Pipeline(" in block]
    sizes = (
        ("2048", "8"),
        ("512", "8"),
        ("32_000", "12"),
        ("=24", "=4"),
        ("=16", "=2"),
    )
    for size, small in sizes:
        assert size in code
        code = code.replace(size, small)
    data = types.SimpleNamespace(as_numpy_iterator=lambda: [examples()] * 2)
    namespace = {"train": types.SimpleNamespace(dataset=data)}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(code, namespace)
        model = keras.saving.load_model("deep.keras", compile=False)
        os.chdir("/")
    inputs, targets = examples()
    loss = float(LOSS(targets, model(inputs)))
    return float(namespace["loss"]), loss


def main():
    jax.config.update("jax_num_cpu_devices", 4)
    options = {"positions": kt.RotaryEmbedding(), "dropout": 0.1}
    model = kt.CausalLM(num_layers=8, **options, **SIZES)
    found = {"outputs": outputs_of(model, micro_batches=PARTS)}
    found["error"] = error(kt.Pipeline, model, devices=3)
    found["documented"] = documented_code()
    jax.config.update("jax_enable_x64", True)
    print(json.dumps({**found, **gradients()}))


if __name__ == "__main__":
    main()

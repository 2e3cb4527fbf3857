"""Trains on four virtual devices and on one of JAX; prints figures as JSON.

`test_devices` runs it as a process: JAX must not have started before the number of
devices is set.
"""

import contextlib
import json
import pathlib
import re
import tempfile
import types
import warnings

import jax
import keras
from device_runs import SIZES, build, difference, error, examples, fit

import keras_transformer as kt
from keras_transformer.backend.sharding import rows_to_add


def on(grid):
    keras.utils.clear_session(free_memory=False)
    return kt.distribute(*grid) if grid else contextlib.nullcontext()


def compare(grid, **options):
    found = []
    for each in ((), grid):
        with on(each):
            found.append(fit(build(**options), rows=7, validation_data=None))
    return difference(*found)


def resume(whole, first, then):
    """A run that begins on some devices and is resumed on others."""
    with tempfile.TemporaryDirectory() as folder:
        with on(first):
            began = fit(build(), callbacks=[kt.Checkpoints(folder)])
        with on(then):
            model = build()
            resumed = fit(model, epochs=2, callbacks=[kt.Checkpoints(folder)])
    batches, epoch = whole
    return difference((batches, epoch), (began[0] + resumed[0], resumed[1])), model


def sharded(variables):
    """The axes of sharded variables, by their paths."""
    specs = {v.path: v.value.sharding.spec for v in variables}
    return {path: str(tuple(spec)) for path, spec in specs.items() if any(spec)}


def errors():
    found = {}
    outside = build()
    optimizer = keras.optimizers.SGD()
    with on((4, 2)):
        found["heads"] = error(build, num_heads=1)
        found["model"] = error(fit, outside)
        found["optimizer"] = error(build, optimizer=optimizer)
        model = build()
        keras.utils.clear_session(free_memory=False)
        found["cleared"] = error(fit, model)
        found["cleared_model"] = error(build)
    found["after"] = error(fit, model)
    found["devices"] = error(kt.distribute(5).__enter__)
    with on((4, 4)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"attention_options": {"num_key_value_heads": 2}}
        sizes = {**SIZES, "vocabulary_size": 11}
        kt.CausalLM(num_layers=1, num_heads=4, **sizes, **options)
    found["vocabulary"], found["key_heads"], _ = (str(each.message) for each in caught)
    return found


def documented_code():
    """Runs the code of the page with a small model; returns its loss."""
    page = (pathlib.Path(kt.__file__).parents[1] / "docs/scaling.md").read_text("utf-8")
    code, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for size, small in (("2048", "8"), ("512", "8"), ("32_000", "12"), ("=6", "=1")):
        assert size in code
        code = code.replace(size, small)
    train = types.SimpleNamespace(dataset=(batch for batch in [examples(8)]))
    namespace = {"train": train}
    exec(code.replace("epochs=40", "epochs=1, verbose=0"), namespace)
    return namespace["model"].history.history["loss"][0]


def main():
    jax.config.update("jax_num_cpu_devices", 4)
    found = {}
    with on(()):
        whole = fit(build(), epochs=2)
    found["to_one"], one = resume(whole, (4, 2), ())
    found["to_four"], four = resume(whole, (), (4, 1))
    texts = [[5, 6, 3], [7, 3]]
    found["generated"] = [
        model.generate(texts, kt.BeamSearch(2), 6).token_ids.tolist()
        for model in (one, four)
    ]
    found["micro_batches"] = compare((2, 1), micro_batches=2, r_drop=1.0)
    inputs, targets = examples(7)
    losses = []
    for grid in ((), (2, 2)):
        with on(grid):
            # It counts padding, so that no rows of padding can be added.
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model = build(kt.CausalLM, loss=loss)
            losses.append(model.train_on_batch(inputs["decoder_token_ids"], targets)[0])
    found["causal"] = abs(float(losses[0]) - float(losses[1]))
    found["layouts"] = sharded(model.variables)
    found["moments"] = sharded(model.optimizer.variables)
    found["errors"] = errors()
    with on((4, 1)):
        found["rows_to_add"] = [rows_to_add(rows) for rows in (4, 5, 7, 8)]
    found["documented"] = documented_code()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

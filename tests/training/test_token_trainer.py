"""Micro-batches against the whole batch, and R-Drop against a loss by hand."""

import keras
import numpy as np
import pytest
from layer_contract import to_numpy

from keras_transformer import (
    CharacterTokenizer,
    LabelSmoothedCrossEntropy,
    LearnedPositionalEncoding,
    Perplexity,
    Seq2Seq,
    parallel_dataset,
)
from keras_transformer.backend.xla_barriers import is_without_xla
from keras_transformer.training import MaskedTokenAccuracy, consistency_loss

RNG = np.random.default_rng(5)
ROWS, SOURCE_LENGTH, TARGET_LENGTH, VOCABULARY = 7, 5, 6, 13
LENGTHS = (6, 2, 3, 6, 1, 4, 5)  # parts of a batch hold unequal numbers of tokens
SOURCE = RNG.integers(1, VOCABULARY, (ROWS, SOURCE_LENGTH)).astype("int32")
TARGET = RNG.integers(1, VOCABULARY, (ROWS, TARGET_LENGTH)).astype("int32")
TARGET[np.arange(TARGET_LENGTH) >= np.array(LENGTHS)[:, None]] = 0
INPUTS = {
    "encoder_token_ids": SOURCE,
    "decoder_token_ids": np.where(TARGET == 0, 0, np.roll(TARGET, 1, axis=1)),
}
WEIGHTS = RNG.uniform(0.5, 2, (ROWS, TARGET_LENGTH)).astype("float32")
JIT = [True, False] if keras.backend.backend() == "tensorflow" else ["auto"]


def compiled(
    optimizer=None, dropout=0.0, dtype=None, loss=None, positions=None, **options
):
    keras.utils.set_random_seed(3)
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=12,
        num_heads=2,
        vocabulary_size=VOCABULARY,
        dropout=dropout,
        normalize_first=True,
        dtype=dtype,
        positions=positions,
    )
    model.compile(
        optimizer=optimizer or keras.optimizers.SGD(1.0),
        loss=loss or LabelSmoothedCrossEntropy(0.1),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        **options,
    )
    return model


def one_step(model, weights=None):
    before = [to_numpy(weight) for weight in model.trainable_weights]
    logs = model.train_on_batch(INPUTS, TARGET, weights, return_dict=True)
    after = [to_numpy(weight) for weight in model.trainable_weights]
    return logs, [a - b for a, b in zip(after, before, strict=True)]


def check_equal(result, expected):
    (logs, updates), (expected_logs, expected_updates) = result, expected
    assert logs.keys() == expected_logs.keys()
    for name, value in logs.items():
        np.testing.assert_allclose(value, expected_logs[name], rtol=1e-5)
    for ours, theirs in zip(updates, expected_updates, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("jit_compile", JIT)
@pytest.mark.parametrize("micro_batches", [2, 3, 7, 10])
def test_micro_batches_make_the_update_of_the_batch(micro_batches, jit_compile):
    expected = one_step(compiled())
    model = compiled(micro_batches=micro_batches, jit_compile=jit_compile)
    check_equal(one_step(model), expected)


def test_weighted_tokens_count_by_their_weights():
    expected = one_step(compiled(), WEIGHTS)
    check_equal(one_step(compiled(micro_batches=3), WEIGHTS), expected)
    rows = WEIGHTS[:, 0]
    check_equal(one_step(compiled(micro_batches=3), rows), one_step(compiled(), rows))


def stock_loss(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def test_a_stock_loss_that_is_a_mean_over_the_weights():
    def mean():
        return stock_loss(reduction="mean_with_sample_weight")

    real = (TARGET != 0).astype("float32")
    expected = one_step(compiled(loss=mean()), real)
    check_equal(one_step(compiled(loss=mean(), micro_batches=3), real), expected)


@pytest.mark.parametrize(
    "loss",
    [stock_loss(), [stock_loss(reduction="sum")], "sparse_categorical_crossentropy"],
    ids=["default", "sum", "name"],
)
def test_a_loss_that_is_no_mean_over_the_weights(loss):
    message = "`loss` must be a mean .* with `micro_batches` above 1; .*`micro_batches="
    with pytest.raises(ValueError, match=message):
        compiled(loss=loss, micro_batches=2)
    if loss != "sparse_categorical_crossentropy":
        compiled(loss=loss, micro_batches=1)


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy(),
        {"output": "categorical_crossentropy"},
    ],
    ids=["name", "function", "object", "nested"],
)
def test_a_loss_of_probabilities(loss):
    with pytest.raises(ValueError, match="`loss` must take logits; received .*rossent"):
        compiled(loss=loss)


def test_an_equal_mean_of_parts_would_be_another_update():
    """What Keras's own accumulation does; the parts here differ enough to tell."""
    _, expected = one_step(compiled())
    parts = [slice(0, 3), slice(3, 6), slice(6, 7)]
    updates = []
    for part in parts:
        model = compiled()
        before = to_numpy(model.trainable_weights[0])
        inputs = {name: ids[part] for name, ids in INPUTS.items()}
        model.train_on_batch(inputs, TARGET[part])
        updates.append(to_numpy(model.trainable_weights[0]) - before)
    assert np.abs(np.mean(updates, axis=0) - expected[0]).max() > 1e-3


def test_clipping_sees_the_whole_gradient():
    clipped = [keras.optimizers.SGD(1.0, global_clipnorm=0.1) for _ in range(2)]
    expected = one_step(compiled(clipped[0]))
    check_equal(one_step(compiled(clipped[1], micro_batches=4)), expected)


def test_loss_scaling_of_half_precision_is_undone():
    options = {"dtype": "mixed_float16"}
    (_, expected), (_, updates) = (
        one_step(compiled(**options, micro_batches=count)) for count in (1, 3)
    )
    for ours, theirs in zip(updates, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert max(np.abs(update).max() for update in updates) > 0.01


def test_weights_of_half_precision():
    """Rounded to bfloat16 once, as the gradient of the whole batch is."""
    (_, expected), (_, updates) = (
        one_step(compiled(dtype="bfloat16", micro_batches=count)) for count in (1, 3)
    )
    for ours, theirs in zip(updates, expected, strict=True):
        np.testing.assert_allclose(
            np.float32(ours), np.float32(theirs), atol=0.02, rtol=0.1
        )
    assert max(np.abs(np.float32(update)).max() for update in updates) > 0.01


def test_padding_is_the_model_s():
    message = "`loss` must take .*`pad_token_id=0`.*Entropy with `pad_token_id=4`"
    with pytest.raises(ValueError, match=message):
        compiled(loss=LabelSmoothedCrossEntropy(pad_token_id=4))
    model = compiled()
    message = "`metrics` must take .*; received Perplexity with `pad_token_id=4`"
    metrics = [Perplexity(pad_token_id=4)]
    with pytest.raises(ValueError, match=message):
        model.compile("sgd", metrics=metrics)
    with pytest.raises(ValueError, match=message):
        model.compile("sgd", LabelSmoothedCrossEntropy(), None, metrics)
    with pytest.raises(ValueError, match="`weighted_metrics` must take .*Perplexity"):
        model.compile("sgd", weighted_metrics=metrics)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_micro_batches_without_weights_to_train():
    model = compiled(micro_batches=2)
    model.trainable = False
    model.compile(loss=LabelSmoothedCrossEntropy(0.1), micro_batches=2)
    logs, _ = one_step(model)
    expected = compiled().evaluate(INPUTS, TARGET, verbose=0)[0]
    np.testing.assert_allclose(logs["loss"], expected, rtol=1e-6)


def test_classes_have_no_weights():
    with pytest.raises(ValueError, match=r"`class_weight` must .*={1: 2.0}`"):
        compiled().fit(INPUTS, TARGET, class_weight={1: 2.0})
    with pytest.raises(ValueError, match=r"`class_weight` must .*={1: 2.0}`"):
        compiled().train_on_batch(INPUTS, TARGET, class_weight={1: 2.0})


@pytest.mark.parametrize("stream", [{}, {"window": 16, "batches_per_epoch": 3}])
@pytest.mark.parametrize("max_shapes", [1, 3])
def test_training_begins_with_the_first_epoch_of_the_data(stream, max_shapes, tmp_path):
    """Keras takes a first batch of its own, on JAX and PyTorch, to build metrics."""
    words = [f"{a}{b}"[: 1 + (a > b)] for a in "abcdefgh" for b in "abcdefgh"]
    (tmp_path / "words").write_text("\n".join(words))
    tokenizer = CharacterTokenizer.train(lines=words)
    data = parallel_dataset(
        *[tmp_path / "words"] * 2,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=24,
        max_shapes=max_shapes,
        max_source_length=3,
        max_target_length=3,
        **stream,
    )
    begun = []

    class Begun(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            begun.append(data.state(batch))

    model = compiled(positions=LearnedPositionalEncoding(max_length=7))
    model.fit(data.dataset, epochs=2, shuffle=False, callbacks=[Begun()], verbose=0)
    batches = len(data.dataset)
    epochs = [(e, b) for e in (0, 1) for b in range(batches)]
    assert [(state["epoch"], state["batch"]) for state in begun] == epochs
    assert begun[0].get("window", 0) == 0


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="where Keras needs to know it"
)
def test_data_whose_number_of_axes_is_not_known():
    tf = pytest.importorskip("tensorflow")
    spec = {name: tf.TensorSpec(None, "int32") for name in INPUTS}
    data = tf.data.Dataset.from_generator(
        lambda: iter([(INPUTS, TARGET)] * 2),
        output_signature=(spec, tf.TensorSpec(None, "int32")),
    )
    data = data.apply(tf.data.experimental.assert_cardinality(2))
    history = compiled().fit(data, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_fit_in_micro_batches_counts_each_batch_once():
    model = compiled(keras.optimizers.Adam(1e-2), micro_batches=2, dropout=0.1)
    history = model.fit(INPUTS, TARGET, batch_size=4, epochs=12, verbose=0)
    assert int(model.optimizer.iterations) == 2 * 12
    assert history.history["loss"][-1] < history.history["loss"][0] - 0.3


def test_the_logged_loss_counts_the_rows_that_there_are():
    def loss(**options):
        model = compiled(keras.optimizers.SGD(0.0), **options)
        return model.fit(INPUTS, TARGET, batch_size=4, verbose=0).history["loss"]

    np.testing.assert_allclose(loss(micro_batches=3), loss(), rtol=1e-6)


def test_consistency_is_the_mean_loss_and_the_divergence():
    model = compiled(dropout=0.4, consistency=3.0)
    seeds = [variable for variable in model.variables if "seed" in variable.path]
    states = [np.array(keras.ops.convert_to_numpy(seed)) for seed in seeds]
    first, second = (model(INPUTS, training=True) for _ in range(2))
    for seed, state in zip(seeds, states, strict=True):
        seed.assign(state)
    loss = LabelSmoothedCrossEntropy(0.1)
    expected = (loss(TARGET, first) + loss(TARGET, second)) / 2
    apart = consistency_loss(TARGET, first, second)
    assert to_numpy(apart) > 1e-3
    logs, _ = one_step(model)
    np.testing.assert_allclose(
        logs["loss"], to_numpy(expected) + 1.5 * to_numpy(apart), rtol=1e-5
    )


def test_consistency_is_for_training_alone():
    model, plain = compiled(dropout=0.4, consistency=3.0), compiled()
    weights = plain.get_weights()
    model.set_weights(weights)
    logs = model.evaluate(INPUTS, TARGET, verbose=0, return_dict=True)
    expected = plain.evaluate(INPUTS, TARGET, verbose=0, return_dict=True)
    np.testing.assert_allclose(logs["loss"], expected["loss"], rtol=1e-6)


def test_consistency_and_micro_batches_go_together():
    model = compiled(
        keras.optimizers.Adam(1e-2), dropout=0.2, consistency=1.0, micro_batches=3
    )
    history = model.fit(INPUTS, TARGET, batch_size=ROWS, epochs=25, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0] - 0.3


def test_a_saved_model_is_compiled_as_before(tmp_path):
    model = compiled(keras.optimizers.Adam(1e-2), micro_batches=3, consistency=2.5)
    one_step(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.micro_batches, loaded.consistency) == (3, 2.5)
    assert int(loaded.optimizer.iterations) == 1
    one_step(loaded)
    assert int(loaded.optimizer.iterations) == 2


@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_micro_batches_must_be_a_positive_integer(value):
    with pytest.raises(ValueError, match=f"`micro_batches` must .*=({value})`"):
        compiled(micro_batches=value)


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_consistency_must_be_finite_and_not_negative(value):
    with pytest.raises(ValueError, match=f"`consistency` must .*=({value})`"):
        compiled(consistency=value)


def test_what_compile_chooses_is_the_fast_one():
    """As `docs/training.md` says; benchmarks/README.md has TensorFlow with XLA."""
    on_gpu = keras.backend.backend() == "tensorflow" and bool(
        keras.distribution.list_devices("gpu")
    )
    assert compiled().jit_compile == (on_gpu or keras.backend.backend() == "jax")


@pytest.mark.parametrize("jit_compile", JIT)
def test_the_loss_knows_when_xla_does_not_compile_it(jit_compile):
    known = []

    class Asking(LabelSmoothedCrossEntropy):
        def call(self, y_true, y_pred):
            known.append(is_without_xla())
            return super().call(y_true, y_pred)

    model = compiled(loss=Asking(), jit_compile=jit_compile)
    one_step(model)
    assert known[-1] == (not model.jit_compile)  # PyTorch asks when it builds, too

"""Micro-batches against the whole batch; R-Drop against its definition."""

import keras
import numpy as np
import pytest
from layer_contract import to_numpy

from keras_transformer import (
    CharacterTokenizer,
    LabelSmoothedCrossEntropy,
    Perplexity,
    Seq2Seq,
    parallel_dataset,
)
from keras_transformer.training import MaskedTokenAccuracy, r_drop_loss
from keras_transformer.training.token_trainer import TokenTrainer

RNG = np.random.default_rng(5)
ROWS, SOURCE_LENGTH, TARGET_LENGTH, VOCABULARY = 7, 5, 6, 13
LENGTHS = (6, 2, 3, 6, 1, 4, 5)  # Parts of a batch have unequal numbers of tokens.
SOURCE = RNG.integers(1, VOCABULARY, (ROWS, SOURCE_LENGTH)).astype("int32")
TARGET = RNG.integers(1, VOCABULARY, (ROWS, TARGET_LENGTH)).astype("int32")
TARGET[np.arange(TARGET_LENGTH) >= np.array(LENGTHS)[:, None]] = 0
INPUTS = {
    "encoder_token_ids": SOURCE,
    "decoder_token_ids": np.where(
        TARGET == 0, 0, np.insert(TARGET[:, :-1], 0, 2, axis=1)
    ),
}
WEIGHTS = RNG.uniform(0.5, 2, (ROWS, TARGET_LENGTH)).astype("float32")


class Small(TokenTrainer):
    """Three projections of one-hot tokens: its steps compile in no time."""

    pad_token_id = 0

    def __init__(self, dropout, dtype):
        super().__init__(dtype=dtype)
        self.sources, self.targets, self.logits = (
            keras.layers.Dense(size, dtype=dtype) for size in (8, 8, VOCABULARY)
        )
        self.dropout = keras.layers.Dropout(dropout, seed=1, dtype=dtype)

    def call(self, inputs, training=None):
        source, target = (
            keras.ops.one_hot(inputs[f"{side}_token_ids"], VOCABULARY)
            for side in ("encoder", "decoder")
        )
        pooled = keras.ops.mean(self.sources(source), axis=1, keepdims=True)
        x = self.targets(target) + pooled
        return self.logits(self.dropout(x, training=training))


def seq2seq(dropout, dtype):
    return Seq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=12,
        num_heads=2,
        vocabulary_size=VOCABULARY,
        dropout=dropout,
        normalize_first=True,
        dtype=dtype,
    )


def compiled(optimizer=None, dropout=0.0, dtype=None, loss=None, make=Small, **options):
    keras.utils.set_random_seed(3)
    model = make(dropout, dtype)
    model(INPUTS)
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


@pytest.fixture(scope="module")
def whole_batch():
    """Logs and updates of a step without micro-batches."""
    return one_step(compiled())


@pytest.mark.parametrize("micro_batches, jit_compile", [(3, True), (10, False)])
def test_micro_batches_make_the_update_of_the_batch(
    whole_batch, micro_batches, jit_compile
):
    # TensorFlow compiles with XLA or without, depending on the device.
    jit_compile = jit_compile if keras.backend.backend() == "tensorflow" else "auto"
    model = compiled(micro_batches=micro_batches, jit_compile=jit_compile)
    check_equal(one_step(model), whole_batch)


def test_micro_batches_of_a_seq2seq():
    whole, parts = (compiled(make=seq2seq, micro_batches=count) for count in (1, 3))
    check_equal(one_step(parts), one_step(whole))


@pytest.mark.once
def test_micro_batches_under_float64(whole_batch):
    """Keras returns losses in `floatx`."""
    keras.config.set_floatx("float64")
    try:
        logs = one_step(compiled(micro_batches=3, dtype="float32"))
    finally:
        keras.config.set_floatx("float32")
    check_equal(logs, whole_batch)


def test_weighted_tokens():
    expected = one_step(compiled(), WEIGHTS)
    check_equal(one_step(compiled(micro_batches=3), WEIGHTS), expected)


@pytest.mark.once("torch")
def test_weighted_rows():
    expected = one_step(compiled(), WEIGHTS[:, 0])
    check_equal(one_step(compiled(micro_batches=3), WEIGHTS[:, 0]), expected)


def keras_loss(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


@pytest.mark.once("torch")
def test_a_loss_of_keras_that_is_a_mean_over_the_weights():
    def mean():
        return keras_loss(reduction="mean_with_sample_weight")

    real = (TARGET != 0).astype("float32")
    expected = one_step(compiled(loss=mean()), real)
    check_equal(one_step(compiled(loss=mean(), micro_batches=3), real), expected)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "loss",
    [keras_loss(), [keras_loss(reduction="sum")], "sparse_categorical_crossentropy"],
    ids=["default", "sum", "name"],
)
def test_a_loss_that_is_not_a_mean_over_the_weights(loss):
    message = "`loss` must be a mean .* with `micro_batches` above 1; .*`micro_batches="
    with pytest.raises(ValueError, match=message):
        compiled(loss=loss, micro_batches=2)
    if loss != "sparse_categorical_crossentropy":
        compiled(loss=loss, micro_batches=1)


@pytest.mark.once("torch")
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


@pytest.mark.once("torch")
def test_clipping_applies_to_the_gradient_of_the_batch():
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


@pytest.mark.once("torch")
def test_weights_of_half_precision():
    """They are rounded to bfloat16 once, as the gradient of the whole batch is."""
    (_, expected), (_, updates) = (
        one_step(compiled(dtype="bfloat16", micro_batches=count)) for count in (1, 3)
    )
    for ours, theirs in zip(updates, expected, strict=True):
        np.testing.assert_allclose(
            np.float32(ours), np.float32(theirs), atol=0.02, rtol=0.1
        )
    assert max(np.abs(np.float32(update)).max() for update in updates) > 0.01


@pytest.mark.once("torch")
def test_another_padding_id_than_that_of_the_model():
    message = r"must have the `pad_token_id=0` .*Entropy\(pad_token_id=4\)"
    with pytest.raises(ValueError, match=message):
        compiled(loss=LabelSmoothedCrossEntropy(pad_token_id=4))
    model = compiled()
    message = r"received .*`metrics`: Perplexity\(pad_token_id=4\)"
    metrics = [Perplexity(pad_token_id=4)]
    with pytest.raises(ValueError, match=message):
        model.compile("sgd", metrics=metrics)
    with pytest.raises(ValueError, match=message):
        model.compile("sgd", LabelSmoothedCrossEntropy(), None, metrics)
    two = [Perplexity(pad_token_id=4), Perplexity(pad_token_id=0)]
    with pytest.raises(ValueError, match=message):
        model.compile("sgd", LabelSmoothedCrossEntropy(), None, two)
    with pytest.raises(ValueError, match="`weighted_metrics`: Perplexity"):
        model.compile("sgd", weighted_metrics=metrics)


def test_padding_of_the_targets_that_is_no_token():
    other = np.where(TARGET == 0, -100, TARGET)
    logs = []
    for targets, padding in ((TARGET, 0), (other, -100)):
        loss, metric = LabelSmoothedCrossEntropy(0.1, padding), Perplexity(padding)
        model = compiled(make=seq2seq, dropout=0.5)
        model.compile("sgd", loss, metrics=[metric], micro_batches=2, r_drop=1.0)
        logs.append(model.train_on_batch(INPUTS, targets))
    np.testing.assert_allclose(*logs, rtol=1e-5)


@pytest.mark.once("torch")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_micro_batches_without_weights_to_train():
    model = compiled(micro_batches=2)
    model.trainable = False
    model.compile(loss=LabelSmoothedCrossEntropy(0.1), micro_batches=2)
    logs, _ = one_step(model)
    expected = compiled().evaluate(INPUTS, TARGET, verbose=0)[0]
    np.testing.assert_allclose(logs["loss"], expected, rtol=1e-6)


@pytest.mark.once("torch")
def test_class_weight_is_refused():
    with pytest.raises(ValueError, match=r"`class_weight` must .*={1: 2.0}`"):
        compiled().fit(INPUTS, TARGET, class_weight={1: 2.0})
    with pytest.raises(ValueError, match=r"`class_weight` must .*={1: 2.0}`"):
        compiled().train_on_batch(INPUTS, TARGET, class_weight={1: 2.0})


@pytest.mark.parametrize(
    "max_shapes, stream", [(3, {}), (1, {"window": 16, "batches_per_epoch": 3})]
)
def test_training_begins_with_the_first_epoch_of_the_data(max_shapes, stream, tmp_path):
    """On JAX and PyTorch, Keras reads a first batch to build the metrics."""
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

    compiled().fit(
        data.dataset, epochs=2, shuffle=False, callbacks=[Begun()], verbose=0
    )
    batches = len(data.dataset)
    epochs = [(e, b) for e in (0, 1) for b in range(batches)]
    assert [(state["epoch"], state["batch"]) for state in begun] == epochs
    assert begun[0].get("window", 0) == 0


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="Keras does not read the rank"
)
def test_data_of_unknown_rank():
    tf = pytest.importorskip("tensorflow")
    spec = {name: tf.TensorSpec(None, "int32") for name in INPUTS}
    data = tf.data.Dataset.from_generator(
        lambda: iter([(INPUTS, TARGET)] * 2),
        output_signature=(spec, tf.TensorSpec(None, "int32")),
    )
    data = data.apply(tf.data.experimental.assert_cardinality(2))
    history = compiled().fit(data, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.once("torch")
def test_fit_in_micro_batches_counts_each_batch_once():
    options = {"micro_batches": 2, "dropout": 0.1, "r_drop": 1.0}
    model = compiled(keras.optimizers.Adam(1e-2), **options)
    history = model.fit(INPUTS, TARGET, batch_size=4, epochs=12, verbose=0)
    assert int(model.optimizer.iterations) == 2 * 12
    assert history.history["loss"][-1] < history.history["loss"][0] - 0.3


def test_the_logged_loss_is_weighted_by_rows():
    def loss(**options):
        model = compiled(keras.optimizers.SGD(0.0), **options)
        return model.fit(INPUTS, TARGET, batch_size=4, verbose=0).history["loss"]

    np.testing.assert_allclose(loss(micro_batches=3), loss(), rtol=1e-6)


def test_r_drop_is_the_mean_loss_and_the_divergence():
    model = compiled(dropout=0.4, r_drop=3.0)
    seeds = [variable for variable in model.variables if "seed" in variable.path]
    states = [np.array(keras.ops.convert_to_numpy(seed)) for seed in seeds]
    keras.utils.set_random_seed(7)  # Dropout on PyTorch draws from its generator.
    first, second = (model(INPUTS, training=True) for _ in range(2))
    for seed, state in zip(seeds, states, strict=True):
        seed.assign(state)
    loss = LabelSmoothedCrossEntropy(0.1)
    expected = (loss(TARGET, first) + loss(TARGET, second)) / 2
    divergence = r_drop_loss(TARGET, first, second)
    assert to_numpy(divergence) > 1e-3
    keras.utils.set_random_seed(7)
    logs, _ = one_step(model)
    np.testing.assert_allclose(
        logs["loss"], to_numpy(expected) + 1.5 * to_numpy(divergence), rtol=1e-5
    )


@pytest.mark.once("torch")
def test_evaluation_is_without_r_drop():
    model, plain = compiled(dropout=0.4, r_drop=3.0), compiled()
    model.set_weights(plain.get_weights())
    logs = model.evaluate(INPUTS, TARGET, verbose=0, return_dict=True)
    expected = plain.evaluate(INPUTS, TARGET, verbose=0, return_dict=True)
    np.testing.assert_allclose(logs["loss"], expected["loss"], rtol=1e-6)


@pytest.mark.once("torch")
def test_a_saved_model_is_compiled_as_before(tmp_path):
    options = {"micro_batches": 3, "r_drop": 2.5}
    model = compiled(keras.optimizers.Adam(1e-2), make=seq2seq, **options)
    one_step(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.micro_batches, loaded.r_drop) == (3, 2.5)
    assert int(loaded.optimizer.iterations) == 1
    one_step(loaded)
    assert int(loaded.optimizer.iterations) == 2


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "name, value", [("micro_batches", 0), ("micro_batches", 1.5), ("r_drop", -0.1)]
)
def test_invalid_arguments(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must .*=({value})`"):
        compiled(**{name: value})
    with pytest.raises(ValueError, match="`r_drop` must .*=(nan)`"):
        compiled(r_drop=float("nan"))


def test_the_default_of_jit_compile_is_the_fast_one():
    """On PyTorch, `test_torch_graph.py` checks it."""
    on_gpu = keras.backend.backend() == "tensorflow" and bool(
        keras.distribution.list_devices("gpu")
    )
    if keras.backend.backend() != "torch":
        assert compiled().jit_compile == (on_gpu or keras.backend.backend() == "jax")


@pytest.mark.once
@pytest.mark.parametrize("call", ["fit", "train_on_batch"])
def test_tensorflow_traces_a_step_once(call):
    """It would trace a step that creates the variables of the optimizer again."""
    traces = []

    class RecordingLoss(LabelSmoothedCrossEntropy):
        def call(self, y_true, y_pred):
            traces.append(y_true.shape)
            return super().call(y_true, y_pred)

    model = compiled(keras.optimizers.Adam(0.1), loss=RecordingLoss())
    getattr(model, call)(INPUTS, TARGET)
    assert len(traces) == 1
    assert int(model.optimizer.iterations) == 1


class Bucketed(keras.utils.PyDataset):
    """Batches of target lengths 4, 4 and 6: Keras looks at the first two."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        length, rows = (4, 4, 6)[index], slice(2 * index, 2 * index + 2)
        inputs = INPUTS["decoder_token_ids"][rows, :length]
        return {**INPUTS, "encoder_token_ids": SOURCE[rows]} | {
            "decoder_token_ids": inputs
        }, TARGET[rows, :length]


def as_tf_dataset(batches):
    import tensorflow as tf

    ids = tf.TensorSpec((None, None), tf.int32)
    signature = {name: ids for name in INPUTS}, ids
    dataset = tf.data.Dataset.from_generator(
        lambda: (batches[i] for i in range(len(batches))), output_signature=signature
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


@pytest.mark.once
def test_a_dataset_whose_first_batches_have_the_same_length():
    """TensorFlow alone fixes the shapes."""
    model, batches = compiled(run_eagerly=True), Bucketed()
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"tf\.data\.Dataset\.from_generator"):
            call(batches, verbose=0)
    losses = [
        float(LabelSmoothedCrossEntropy(0.1)(y, model(x)))
        for x, y in (batches[i] for i in range(3))
    ]
    logs = model.evaluate(as_tf_dataset(batches), verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_predict_over_batches_of_different_lengths():
    model, batches = compiled(run_eagerly=True), Bucketed()
    dataset = as_tf_dataset(batches)
    if keras.backend.backend() == "tensorflow":
        outputs = list(model.predict(dataset, verbose=0))
    else:
        with pytest.raises(ValueError, match="Call `predict_on_batch` for each batch"):
            model.predict(dataset, verbose=0)
        outputs = [row for x, _ in dataset for row in model.predict_on_batch(x)]
    expected = [row for i in range(3) for row in to_numpy(model(batches[i][0]))]
    for row, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(row, right, atol=1e-5)


@pytest.mark.once("torch")
def test_other_errors_of_predict_stay_as_they_are():
    with pytest.raises(Exception, match="decoder_token_ids"):
        compiled().predict({"encoder_token_ids": SOURCE}, verbose=0)

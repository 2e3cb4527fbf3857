import keras
import numpy as np
import pytest
from layer_contract import with_random_weights

from keras_transformer import (
    CausalLM,
    Checkpoints,
    LabelSmoothedCrossEntropy,
    RotaryEmbedding,
    Seq2Seq,
    average_checkpoints,
    enable_lora,
    load_checkpoint,
    merge_lora,
)
from keras_transformer.training.checkpoints import storage
from keras_transformer.training.checkpoints.run_state import without_random_states

RNG = np.random.default_rng(83)
SIZES = {"hidden_dim": 12, "intermediate_dim": 11, "num_heads": 3, "num_layers": 2}
MODERN = {
    "feed_forward_options": {"gated": True, "use_bias": False},
    "attention_options": {"use_bias": False, "num_key_value_heads": 1},
    "positions": RotaryEmbedding(),
}
INPUTS = {
    "encoder_token_ids": RNG.integers(1, 13, (6, 7)),
    "decoder_token_ids": RNG.integers(1, 13, (6, 5)),
}
TARGETS = RNG.integers(1, 13, (6, 5))


def seq2seq(**options):
    model = Seq2Seq(**SIZES, vocabulary_size=13, **options)
    return with_random_weights(model)


def logits(model):
    return keras.ops.convert_to_numpy(model(INPUTS))


def fit(model, epochs=2):
    model.compile(keras.optimizers.Adam(0.01), LabelSmoothedCrossEntropy())
    model.fit(INPUTS, TARGETS, batch_size=3, epochs=epochs, verbose=0)


@pytest.mark.parametrize("options", [{}, MODERN])
def test_only_the_matrices_are_trained(options):
    model = seq2seq(**options)
    before = logits(model)
    values = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}
    layers = enable_lora(model, rank=2, targets="all")
    assert len(layers) == 2 * (4 + 8 + 2 * (3 if options else 2))
    np.testing.assert_allclose(logits(model), before, atol=1e-5)
    trained = {weight.name for weight in model.trainable_weights}
    assert trained == {"lora_kernel_a", "lora_kernel_b"}
    fit(model)
    for weight in model.weights:
        if weight.path in values:
            value = keras.ops.convert_to_numpy(weight)
            np.testing.assert_array_equal(value, values[weight.path])
    after = logits(model)
    assert np.abs(after - before).max() > 0.01
    merged = merge_lora(model)
    assert [tuple(w.shape) for w in merged.trainable_weights] == [
        value.shape for value in values.values()
    ]
    np.testing.assert_allclose(logits(merged), after, atol=1e-4)


@pytest.mark.once("torch")
def test_the_targets():
    def chosen(targets):
        return enable_lora(seq2seq(), 1, targets=targets)

    assert chosen(["value", "query"])[:2] == [
        "encoder.blocks.0.self_attention.query_dense",
        "encoder.blocks.0.self_attention.value_dense",
    ]
    assert chosen("feed_forward.output") == [
        f"{side}.blocks.{number}.feed_forward.output_dense"
        for side in ("encoder", "decoder")
        for number in (0, 1)
    ]
    one = "decoder.blocks.1.cross_attention.key"
    assert chosen(one) == [f"{one}_dense"]
    message = "`targets` must be 'all' or names .* 'intermediate'; received `targets='g"
    with pytest.raises(ValueError, match=message):
        chosen("gate")
    with pytest.raises(ValueError, match="`rank` must be an int of at least 1"):
        enable_lora(seq2seq(), 0)
    with pytest.raises(ValueError, match="`alpha` must be .* above 0 .*; received"):
        enable_lora(seq2seq(), 1, alpha=0)
    model = seq2seq()
    enable_lora(model, 1)
    with pytest.raises(ValueError, match="`model` must have no LoRA yet"):
        enable_lora(model, 1)


@pytest.mark.once("torch")
def test_the_first_values_and_the_scale():
    model = seq2seq()
    enable_lora(model, rank=3)
    dense = model.decoder.blocks[0].self_attention.query_dense
    a, b = (keras.ops.convert_to_numpy(w) for w in dense.trainable_weights)
    assert (a.shape, b.shape) == ((12, 3), (3, 3, 4)) and not b.any()
    assert 0.8 * 12**-0.5 < np.abs(a).max() <= 12**-0.5  # as in PEFT
    assert dense.lora_alpha == 6


def test_mixed_precision_and_generation():
    model = CausalLM(**SIZES, vocabulary_size=13, dtype="mixed_bfloat16", **MODERN)
    with_random_weights(model)
    enable_lora(model, rank=2, alpha=1.5)
    with_random_weights(model)
    plain = CausalLM(**SIZES, vocabulary_size=13, **MODERN)
    plain.set_weights(merge_lora(model).get_weights())
    tokens = RNG.integers(1, 13, (3, 5))
    ours, theirs = (
        keras.ops.convert_to_numpy(keras.ops.cast(each(tokens), "float32"))
        for each in (model, plain)
    )
    assert np.abs(ours - theirs).max() < 0.1 * np.abs(theirs).max()
    assert model.generate(tokens, max_length=3).token_ids is not None


@pytest.mark.once("torch")
def test_a_file_has_the_merged_kernels(tmp_path):
    model = seq2seq()
    enable_lora(model, rank=2, targets="all")
    with_random_weights(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(merge_lora(model).weights)
    np.testing.assert_allclose(logits(loaded), logits(model), atol=1e-4)


@pytest.mark.once("torch")
def test_a_merged_model_is_unchanged_by_further_training():
    model = seq2seq()
    enable_lora(model, rank=2)
    merged = merge_lora(model)
    before = logits(merged)
    fit(model, epochs=1)
    np.testing.assert_array_equal(logits(merged), before)
    enable_lora(merged, rank=1, targets="intermediate")


def test_checkpoints_have_the_trained_part_alone(tmp_path):
    """They resume, load and are averaged as those with all weights are."""

    def adapted(seed=11):
        model = with_random_weights(Seq2Seq(**SIZES, vocabulary_size=13), seed)
        enable_lora(model, rank=2)
        model.compile(keras.optimizers.Adam(0.01), LabelSmoothedCrossEntropy())
        return model

    def fit(model, epochs, folder):
        checkpoints = Checkpoints(tmp_path / folder, keep=2, monitor="loss")
        return model.fit(
            INPUTS,
            TARGETS,
            batch_size=3,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[checkpoints],
        ).history["loss"]

    keras.utils.set_random_seed(3)
    whole = fit(adapted(), 3, "whole")
    keras.utils.set_random_seed(3)
    first = fit(adapted(), 2, "resumed")
    resumed = adapted()
    assert first == whole[:2] and fit(resumed, 3, "resumed") == whole
    path = tmp_path / "resumed/epoch-0003.npz"
    trained = sum(np.prod(weight.shape) for weight in resumed.trainable_weights)
    weights = without_random_states(storage.read_checkpoint(path)["model"])
    assert sum(each["value"].size for each in weights) == trained
    loaded = adapted()
    load_checkpoint(loaded, path)
    np.testing.assert_array_equal(logits(loaded), logits(resumed))
    average_checkpoints(loaded, tmp_path / "resumed", 2)
    assert np.isfinite(logits(loaded)).all()
    message = "checkpoints of LoRA of the same model; .* has other values"
    with pytest.raises(ValueError, match=message):
        load_checkpoint(adapted(seed=5), path)
    with pytest.raises(ValueError, match=message):
        fit(adapted(seed=5), 4, "resumed")

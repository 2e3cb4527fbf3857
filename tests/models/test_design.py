"""`Seq2Seq` with other positions and other parts than the paper's."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import BeamSearch, GreedySearch, Seq2Seq
from keras_transformer.layers import (
    AlibiBias,
    GlobalLocal,
    LearnedPositionalEncoding,
    LocalWindow,
    RelativePositionBias,
    RotaryEmbedding,
)

SIZES = {
    "num_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "num_heads": 4,
    "vocabulary_size": 11,
    "dropout": 0.0,
}
LLAMA = {
    "activation": "silu",
    "normalize_first": True,
    "attention_options": {"num_key_value_heads": 2, "use_bias": False},
    "feed_forward_options": {"gated": True, "use_bias": False},
    "residual_options": {"normalization": "rms", "stochastic_depth": 0.2},
}
DESIGNS = {
    "learned": lambda: {"positions": LearnedPositionalEncoding(max_length=60)},
    "rotary": lambda: {"positions": RotaryEmbedding()},
    "alibi": lambda: {"positions": AlibiBias()},
    "relative": lambda: {"positions": RelativePositionBias(8, max_distance=5)},
    "local": lambda: {"attention_options": {"pattern": LocalWindow(radius=1)}},
    "llama": lambda: {"positions": RotaryEmbedding(), **LLAMA},
    "multi-query, global and local": lambda: {
        "positions": AlibiBias(),
        "attention_options": {
            "num_key_value_heads": 1,
            "pattern": GlobalLocal(radius=1, global_tokens=1),
        },
    },
}
SOURCES = np.array([[5, 6, 7, 8, 3], [4, 8, 3, 0, 0]])
TARGETS = np.array([[2, 7, 9, 4], [2, 5, 5, 6]])
INPUTS = {"encoder_token_ids": SOURCES, "decoder_token_ids": TARGETS}


def model_of(name):
    model = Seq2Seq(**SIZES, **DESIGNS[name]())
    rng = np.random.default_rng(3)
    model.set_weights([w + rng.normal(0, 0.2, w.shape) for w in model.get_weights()])
    return model


def logits(model, sources=SOURCES, targets=TARGETS):
    inputs = {"encoder_token_ids": sources, "decoder_token_ids": targets}
    return ops.convert_to_numpy(model(inputs))


@pytest.mark.parametrize("name", DESIGNS)
def test_config_and_file_restore_the_model(name, tmp_path):
    model = model_of(name)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.get_config() == model.get_config()
    np.testing.assert_array_equal(logits(reloaded), logits(model))


@pytest.mark.parametrize("name", DESIGNS)
def test_steps_with_reordered_beams_equal_whole_calls(name):
    model, num_beams = model_of(name), 3
    beams = np.random.default_rng(1).integers(4, 11, size=(2, num_beams, 4))
    beams[..., 0] = model.start_token_id
    parents = np.array([[2, 0, 1], [1, 2, 0]])
    state = model.start_decoding(SOURCES, num_beams, max_length=4)
    for index in range(4):
        newest = ops.convert_to_tensor(beams[:, :, index])
        stepped, state = model.decode_step(newest, index, state)
        if index == 1:
            state = model.reorder_state(state, ops.convert_to_tensor(parents))
            beams = np.take_along_axis(beams, parents[:, :, None], axis=1)
    for beam in range(num_beams):
        whole = logits(model, targets=beams[:, beam])[:, -1]
        stepped_beam = ops.convert_to_numpy(stepped)[:, beam]
        np.testing.assert_allclose(stepped_beam, whole, atol=2e-5)


@pytest.mark.parametrize("name", ["relative", "llama", "multi-query, global and local"])
def test_beam_search_scores_are_those_of_whole_calls(name):
    model = model_of(name)
    found = model.generate([[5, 6, 7, 8, 3]], BeamSearch(3), max_length=5)
    for token_ids, length, score in zip(
        found.token_ids[0], found.lengths[0], found.scores[0], strict=True
    ):
        hypothesis = token_ids[None, :length]
        targets = np.concatenate([[[model.start_token_id]], hypothesis], axis=1)
        scores = logits(model, SOURCES[:1], targets[:, :-1]).astype("float64")[0]
        scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        total = np.take_along_axis(scores, hypothesis[0][:, None], axis=1).sum()
        np.testing.assert_allclose(score, total / ((5 + length) / 6) ** 0.6, atol=1e-4)


@pytest.mark.parametrize("name", DESIGNS)
def test_scores_of_every_block_are_returned_on_request(name):
    model = model_of(name)
    plain = logits(model)
    with_scores, scores = model(INPUTS, return_attention_scores=True)
    np.testing.assert_allclose(ops.convert_to_numpy(with_scores), plain, atol=2e-5)
    shapes = {kind: [tuple(s.shape) for s in each] for kind, each in scores.items()}
    assert shapes == {
        "encoder": [(2, 4, 5, 5)] * 2,
        "decoder": [(2, 4, 4, 4)] * 2,
        "cross": [(2, 4, 4, 5)] * 2,
    }


def test_a_pattern_is_for_self_attention_alone():
    model = model_of("local")
    _, scores = model(INPUTS, return_attention_scores=True)
    first = ops.convert_to_numpy(scores["encoder"][0])[0, 0]
    far = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) > 1
    assert (first[far] == 0).all() and (first[~far] > 0).all()
    assert (ops.convert_to_numpy(scores["cross"][0])[0] > 0).all()


def test_a_cache_holds_the_heads_of_keys_and_values_alone():
    model = model_of("llama")
    state = model.start_decoding(SOURCES, num_beams=3, max_length=4)
    for own, cross in state["caches"].blocks:
        assert own.keys.shape == (2, 2, 4, 12) and own.values.shape == (2, 2, 12, 4)
        assert cross.keys.shape == (2, 2, 4, 5) and cross.values.shape == (2, 2, 5, 4)


def test_stochastic_depth_rises_from_block_to_block():
    model = model_of("llama")
    for stack in (model.encoder, model.decoder):
        rates = [b.feed_forward_residual.stochastic_depth for b in stack.blocks]
        assert rates == [0.1, 0.2]


def test_each_block_has_relative_positions_of_its_own():
    model = model_of("relative")
    tables = [
        block.self_attention.positions.embeddings
        for stack in (model.encoder, model.decoder)
        for block in stack.blocks
    ]
    assert len({id(table) for table in tables}) == 4
    assert all(
        block.cross_attention.positions is None for block in model.decoder.blocks
    )


# Limits.


def test_learned_positions_limit_the_model():
    model = Seq2Seq(**SIZES, positions=LearnedPositionalEncoding(max_length=5))
    assert (model.max_source_length, model.max_target_length) == (5, 5)
    found = model.generate([[5, 6, 7, 8, 3]], GreedySearch())
    assert found.token_ids.shape[-1] <= 5
    assert np.isfinite(found.scores).all()
    with pytest.raises(ValueError, match="`max_source_length"):
        model.generate([[5, 6, 7, 8, 9, 3]])


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", ["max_source_length", "max_target_length"])
def test_a_limit_beyond_the_learned_positions_is_refused(name):
    positions = LearnedPositionalEncoding(max_length=5)
    with pytest.raises(ValueError, match=f"`{name}` must not be greater than"):
        Seq2Seq(**SIZES, positions=positions, **{name: 6})
    assert getattr(Seq2Seq(**SIZES, positions=positions, **{name: 4}), name) == 4


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", DESIGNS)
def test_summary_names_the_parts(name):
    lines = []
    model_of(name).summary(print_fn=lines.append)
    assert "target_embedding" in "".join(lines)

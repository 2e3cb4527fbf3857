"""`Seq2Seq` with other positions and other parts than the paper's."""

import keras
import numpy as np
import pytest
from designs import DESIGNS
from keras import ops

from keras_transformer import BeamSearch, GreedySearch, Seq2Seq
from keras_transformer.decoding.decoding_model import extend_steps, reorder_beams
from keras_transformer.layers import LearnedPositionalEncoding

SIZES = {
    "num_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "vocabulary_size": 11,
}
SOURCES = np.array([[5, 6, 7, 8, 3], [4, 8, 3, 0, 0]])
TARGETS = np.array([[2, 7, 9, 4], [2, 5, 5, 6]])
INPUTS = {"encoder_token_ids": SOURCES, "decoder_token_ids": TARGETS}


def model_of(name, **options):
    model = Seq2Seq(**{**SIZES, **DESIGNS[name](), **options})
    rng = np.random.default_rng(3)
    model.set_weights([w + rng.normal(0, 0.2, w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def modern():
    """Rotary positions, one head of keys and values, a window, gates and RMS."""
    return model_of("modern")


def logits(model, sources=SOURCES, targets=TARGETS):
    inputs = {"encoder_token_ids": sources, "decoder_token_ids": targets}
    return ops.convert_to_numpy(model(inputs))


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", DESIGNS)
def test_config_and_file_restore_the_model(name, tmp_path):
    model = model_of(name)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.get_config() == model.get_config()
    np.testing.assert_array_equal(logits(reloaded), logits(model))


@pytest.mark.parametrize(
    ("name", "normalize_first"),
    [
        ("sinusoidal", False),
        ("relative", True),
        ("modern", True),
        pytest.param("global", False, marks=pytest.mark.once("torch")),
    ],
)
def test_steps_with_reordered_beams_equal_whole_calls(name, normalize_first):
    model, num_beams = model_of(name, normalize_first=normalize_first), 3
    beams = np.random.default_rng(1).integers(4, 11, size=(2, num_beams, 4))
    beams[..., 0] = model.start_token_id
    parents = np.array([[2, 0, 1], [1, 2, 0]])
    state = model.start_decoding(SOURCES, num_beams, max_length=2)
    for index in range(4):
        if index == 2:
            state = extend_steps(model, state, 3)
        newest = ops.convert_to_tensor(beams[:, :, index], "int32")
        stepped, state = model.decode_step(newest, index, state)
        if index == 1:
            state = reorder_beams(model, state, ops.convert_to_tensor(parents))
            beams = np.take_along_axis(beams, parents[:, :, None], axis=1)
    for beam in range(num_beams):
        whole = logits(model, targets=beams[:, beam])[:, -1]
        stepped_beam = ops.convert_to_numpy(stepped)[:, beam]
        np.testing.assert_allclose(stepped_beam, whole, atol=2e-5)


@pytest.mark.once("torch")
def test_beam_search_scores_are_those_of_whole_calls(modern):
    found = modern.generate([[5, 6, 7, 8, 3]], BeamSearch(3), max_length=4)
    length, score = int(found.lengths[0, 0]), found.scores[0, 0]
    hypothesis = found.token_ids[0, 0]
    targets = np.array([[modern.start_token_id, *hypothesis[:3]]] * 2)
    scores = logits(modern, targets=targets).astype("float64")[0]
    scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    total = scores[range(length), hypothesis[:length]].sum()
    np.testing.assert_allclose(score, total / ((5 + length) / 6) ** 0.6, atol=1e-4)


@pytest.mark.once("torch")
def test_the_options_are_those_of_both_stacks(modern):
    for stack in (modern.encoder, modern.decoder):
        own, stacked = modern.get_config(), stack.get_config()
        for name in ("attention", "feed_forward", "residual"):
            assert stacked[f"{name}_options"] == own[f"{name}_options"]
        assert stack.positions is modern.positions
        rates = [b.feed_forward_residual.stochastic_depth for b in stack.blocks]
        assert rates == [0.25, 0.5]


@pytest.mark.once("torch")
def test_a_pattern_is_for_self_attention_alone(modern):
    _, scores = modern(INPUTS, return_attention_scores=True)
    first = ops.convert_to_numpy(scores["encoder"][0])[0, 0]
    far = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) > 2
    assert (first[far] == 0).all() and (first[~far] > 0).all()
    assert (ops.convert_to_numpy(scores["cross"][0])[0] > 0).all()


@pytest.mark.once("torch")
def test_a_cache_holds_the_heads_of_keys_and_values_alone(modern):
    state = modern.start_decoding(SOURCES, num_beams=3, max_length=4)
    for own, cross in state["caches"]:
        assert own.keys.shape == (2, 1, 4, 12) and own.values.shape == (2, 1, 12, 4)
        assert cross.keys.shape == (2, 1, 4, 5) and cross.values.shape == (2, 1, 5, 4)


@pytest.mark.once("torch")
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


@pytest.mark.once("torch")
def test_learned_positions_limit_the_model():
    positions = LearnedPositionalEncoding(max_length=5)
    model = Seq2Seq(**SIZES, positions=positions)
    assert (model.max_source_length, model.max_target_length) == (5, 5)
    found = model.generate([[5, 6, 7, 8, 3]], GreedySearch())
    assert found.token_ids.shape[-1] <= 5
    assert np.isfinite(found.scores).all()
    with pytest.raises(ValueError, match="`max_source_length"):
        model.generate([[5, 6, 7, 8, 9, 3]])
    for name in ("max_source_length", "max_target_length"):
        with pytest.raises(ValueError, match=f"`{name}` must not be greater than"):
            Seq2Seq(**SIZES, positions=positions, **{name: 6})
        assert getattr(Seq2Seq(**SIZES, positions=positions, **{name: 4}), name) == 4

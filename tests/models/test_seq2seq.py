import keras
import numpy as np
import pytest
import reference
from designs import SCHEMES
from keras import ops
from layer_contract import HALF_POLICIES, to_numpy, with_random_weights

from keras_transformer import BeamSearch, GreedySearch, Seq2Seq
from keras_transformer.inference.batch_search import prepare_search
from keras_transformer.inference.request import Request

RNG = np.random.default_rng(19)
BATCH, SOURCE_LENGTH, TARGET_LENGTH = 3, 5, 4
NUM_HEADS, HIDDEN_DIM, VOCABULARY_SIZE = 3, 6, 13
START, END = 2, 3
SOURCE = RNG.integers(4, VOCABULARY_SIZE, (BATCH, SOURCE_LENGTH))
SOURCE[0, 3:] = 0
SOURCE[2, 1:] = 0
TARGET = RNG.integers(4, VOCABULARY_SIZE, (BATCH, TARGET_LENGTH))
TARGET[:, 0] = START
TARGET[1, 2:] = 0
INPUTS = {"encoder_token_ids": SOURCE, "decoder_token_ids": TARGET}
TWO_VOCABULARIES = {
    "vocabulary_size": None,
    "source_vocabulary_size": 17,
    "target_vocabulary_size": VOCABULARY_SIZE,
}


def on_torch(*values):
    """A case in which the backend makes no difference: it runs with PyTorch."""
    return pytest.param(*values, marks=pytest.mark.once("torch"))


def seq2seq(**arguments):
    sizes = {
        "num_layers": 2,
        "hidden_dim": HIDDEN_DIM,
        "intermediate_dim": 7,
        "num_heads": NUM_HEADS,
        "vocabulary_size": VOCABULARY_SIZE,
    }
    return with_random_weights(Seq2Seq(**{**sizes, **arguments}))


@pytest.fixture(scope="module")
def model():
    return seq2seq()


def logits_of(model, source, target):
    return to_numpy(model({"encoder_token_ids": source, "decoder_token_ids": target}))


def reference_logits(model, source, target):
    """The whole model in float64 NumPy."""
    first, scaled = model.normalize_first, model.scale_embeddings
    embeddings = model.target_embedding.get_weights()[0].astype("float64")
    source_mask = (source != 0)[:, None, :]
    encoded = _embed(model.source_embedding.get_weights()[0], source, scaled)
    for block in model.encoder.blocks:
        encoded, _ = reference.encoder_block(
            block.get_weights(), encoded, source_mask, first
        )
    if first:
        encoded = reference.layer_norm(model.encoder.norm.get_weights(), encoded)
    decoded = _embed(embeddings, target, scaled)
    causal_mask = reference.causal_mask(target.shape[1], target.shape[1])
    for block in model.decoder.blocks:
        decoded, _, _ = reference.decoder_block(
            block.get_weights(), decoded, encoded, causal_mask, source_mask, first
        )
    if first:
        decoded = reference.layer_norm(model.decoder.norm.get_weights(), decoded)
    bias = to_numpy(model.logits_bias) if model.output_bias else 0
    if model.tie_embeddings == "none":
        (kernel,) = model.output_dense.get_weights()
        return decoded @ kernel + bias
    return decoded @ embeddings.T + bias


def _embed(embeddings, token_ids, scaled):
    positions = reference.positional_encoding(range(token_ids.shape[1]), HIDDEN_DIM)
    scale = HIDDEN_DIM**0.5 if scaled else 1
    return embeddings.astype("float64")[token_ids] * scale + positions


# The call.


@pytest.mark.parametrize(
    "options",
    [
        {"normalize_first": False},
        {"tie_embeddings": "target", "output_bias": True, "num_decoder_layers": 1},
        {"tie_embeddings": "none", "output_bias": False, "scale_embeddings": False},
        on_torch(TWO_VOCABULARIES),
        on_torch({**TWO_VOCABULARIES, "tie_embeddings": "none"}),
    ],
    ids=["post-norm", "fewer", "unscaled", "two", "two and untied"],
)
def test_logits_are_those_of_the_paper(options):
    model = seq2seq(**options)
    assert model.normalize_first == options.get("normalize_first", True)
    assert model.output_bias == options.get(
        "output_bias", options.get("tie_embeddings") == "none"
    )
    source = SOURCE + 4 * (SOURCE > 0) if "vocabulary_size" in options else SOURCE
    expected = reference_logits(model, source, TARGET)
    logits = logits_of(model, source, TARGET)
    assert keras.backend.standardize_dtype(model(INPUTS).dtype) == "float32"
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=3e-5)


def test_batch_mates_and_padding_change_nothing(model):
    source, target = np.pad(SOURCE, [(0, 0), (0, 6)]), TARGET.copy()
    source[1] = target[1] = 0
    logits = logits_of(model, source, target)
    assert np.isfinite(logits).all()
    expected = to_numpy(model(INPUTS))[[0, 2]]
    np.testing.assert_allclose(logits[[0, 2]], expected, atol=3e-5)


def test_later_target_tokens_do_not_leak(model):
    changed = TARGET.copy()
    changed[:, 2] = 5 + (TARGET[:, 2] == 5)
    logits, expected = logits_of(model, SOURCE, changed), to_numpy(model(INPUTS))
    np.testing.assert_allclose(logits[:, :2], expected[:, :2], atol=1e-6)
    assert (np.abs(logits[:, 2] - expected[:, 2]).max(axis=-1) > 1e-3).all()


@pytest.mark.once("torch")
def test_symbolic_shape(model):
    symbolic = {name: keras.Input((None,), dtype="int32") for name in INPUTS}
    assert model(symbolic).shape == (None, None, VOCABULARY_SIZE)


@pytest.mark.once("torch")
def test_the_padding_id_is_a_setting():
    model = seq2seq(pad_token_id=12)
    source = np.where(SOURCE == 0, 12, SOURCE)
    longer = np.pad(source, [(0, 0), (0, 2)], constant_values=12)
    expected = logits_of(model, source, TARGET)
    np.testing.assert_allclose(logits_of(model, longer, TARGET), expected, atol=3e-5)


def test_attention_scores(model):
    logits, scores = model(INPUTS, return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(logits), to_numpy(model(INPUTS)), atol=3e-5)
    source, target = SOURCE_LENGTH, TARGET_LENGTH
    shapes = {
        "encoder": (BATCH, NUM_HEADS, source, source),
        "decoder": (BATCH, NUM_HEADS, target, target),
        "cross": (BATCH, NUM_HEADS, target, source),
    }
    assert scores.keys() == shapes.keys()
    for name, shape in shapes.items():
        layers = [to_numpy(layer) for layer in scores[name]]
        assert [layer.shape for layer in layers] == [shape] * 2
        np.testing.assert_allclose([layer.sum(-1) for layer in layers], 1.0, atol=1e-5)
    padding = np.broadcast_to((SOURCE == 0)[:, None, None], shapes["cross"])
    future = np.triu(np.ones((target, target), bool), 1)
    assert (to_numpy(scores["cross"][1])[padding] == 0.0).all()
    assert (to_numpy(scores["decoder"][1])[..., future] == 0.0).all()


@pytest.mark.once("torch")
def test_dropout_only_in_training():
    model = seq2seq(dropout=0.5)
    trained = to_numpy(model(INPUTS, training=True))
    assert np.abs(trained - to_numpy(model(INPUTS))).max() > 1e-2
    encoded = [to_numpy(model.encode(SOURCE, training=t)) for t in (True, False, None)]
    assert encoded[0].shape == (BATCH, SOURCE_LENGTH, HIDDEN_DIM)
    assert np.abs(encoded[0] - encoded[1]).max() > 1e-2
    np.testing.assert_array_equal(encoded[1], encoded[2])


@pytest.mark.parametrize("policy", ["mixed_float16", on_torch("mixed_bfloat16")])
def test_half_precision(policy):
    model = seq2seq(num_layers=1, dtype=policy)
    source, target = SOURCE.copy(), TARGET[:, :1]
    source[0] = 0
    logits = model({"encoder_token_ids": source, "decoder_token_ids": target})
    assert keras.backend.standardize_dtype(logits.dtype) == HALF_POLICIES[policy]
    assert np.isfinite(to_numpy(logits)).all()
    assert all(weight.dtype == "float32" for weight in model.weights)
    state = model.start_decoding(source, num_beams=1, max_length=3)
    tokens = ops.convert_to_tensor(target, "int32")
    stepped, _ = model.decode_step(tokens, 0, state)
    np.testing.assert_allclose(to_numpy(stepped), to_numpy(logits), atol=0.3)


@pytest.mark.once("torch")
def test_positions_are_added_or_part_of_the_blocks():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8}
    source = SOURCE[1:2]
    for scheme in SCHEMES.values():
        model = seq2seq(positions=scheme(), **sizes)
        logits = logits_of(model, source, TARGET[1:2])
        permuted = logits_of(model, source[:, [3, 0, 4, 2, 1]], TARGET[1:2])
        assert np.abs(logits - permuted).max() > 1e-3
        added = [model.source_encoding, model.target_encoding]
        blocks = [*model.encoder.blocks, *model.decoder.blocks]
        if model.positions.added_to_inputs:
            assert added[0] is not added[1]
            assert {type(copy) for copy in added} == {type(model.positions)}
            assert {block.positions for block in blocks} == {None}
        else:
            assert added == [None, None]


# Searches.


def test_generate_equals_a_search_step_by_step_and_has_the_scores_of_the_call():
    """Also after another one with other weights, which compiled it."""
    model = seq2seq(num_layers=1, output_bias=True)
    search = BeamSearch(3, 0.0, num_hypotheses=2)
    limits = {"max_length": SOURCE_LENGTH + 11}  # no room for so many at first
    limits["min_length"] = limits["max_length"] - 1
    weights = model.get_weights()
    with_random_weights(model, seed=3)
    before = model.generate(SOURCE, search, **limits)
    model.set_weights(weights)
    found = model.generate(SOURCE, search, **limits)
    assert (found.token_ids != before.token_ids).any()

    request = Request(search, **limits)
    inputs, state, steps, _ = prepare_search(model, SOURCE, request, full_capacity=True)
    state = search.start(model, inputs, state, steps)
    while not to_numpy(state.done).all():
        state = search.advance(model, inputs, state)
    for one, other in zip(found[:3], search.result(model, state)[:3], strict=True):
        np.testing.assert_allclose(one, to_numpy(other), atol=1e-4)

    token_ids = found.token_ids[:, 0]
    logits = reference_logits(
        model, SOURCE, np.insert(token_ids[:, :-1], 0, START, axis=1)
    )
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    for row, length in enumerate(found.lengths[:, 0]):
        chosen = log_probs[row, np.arange(length), token_ids[row, :length]]
        np.testing.assert_allclose(found.scores[row, 0], chosen.sum(), atol=3e-4)


@pytest.mark.once("torch")
def test_the_longest_output():
    """At most 50 tokens longer than its source, if `max_target_length` is not less."""
    for options, expected in (({}, [53, 55, 51]), ({"max_target_length": 7}, [7] * 3)):
        model = seq2seq(num_layers=1, **options)
        # Without the end token: its embedding is the opposite of every output.
        embeddings = model.target_embedding.get_weights()[0]
        scale, offset = model.decoder.norm.get_weights()
        model.decoder.norm.set_weights([0 * scale, offset])
        embeddings[END] = -50.0 * offset
        model.target_embedding.set_weights([embeddings])
        result = model.generate(SOURCE, GreedySearch())
        assert result.lengths[:, 0].tolist() == expected
    assert model.generate(SOURCE, GreedySearch(), max_length=5).lengths.max() == 5


# Arguments.


@pytest.mark.once("torch")
def test_invalid_sizes():
    names = ["num_layers", "num_decoder_layers", "hidden_dim", "intermediate_dim"]
    names += ["num_heads", "vocabulary_size", "max_source_length", "max_target_length"]
    for name, number in zip(names, [0, -2, 2.0] * 3, strict=False):
        message = f"`{name}` must be an int of at least 1; received `{name}={number}`"
        with pytest.raises(ValueError, match=message):
            seq2seq(**{name: number})
    message = "`hidden_dim` must be divisible by `num_heads`; received `hidden_dim=7`"
    with pytest.raises(ValueError, match=message):
        seq2seq(hidden_dim=7)
    with pytest.raises(ValueError, match="the decoder has 1 layers; .*`layer=1`"):
        seq2seq(num_decoder_layers=1).align(SOURCE, TARGET, layer=1)


@pytest.mark.once("torch")
def test_sizes_may_be_those_of_numpy(tmp_path):
    model = seq2seq(max_source_length=np.int64(9), num_heads=np.int64(3))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.max_source_length, loaded.num_heads) == (9, 3)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("options", "output"),
    [
        (
            {"output_bias": True, "positions": SCHEMES["learned"]()},
            "Logits: (None, None, 13), weights of target_embedding and a bias (13 ",
        ),
        ({"tie_embeddings": "none"}, "output (Dense) | (None, None, 13) | 78"),
    ],
)
def test_summary(options, output):
    model, printed = seq2seq(**options), []
    model.summary(print_fn=printed.append)
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in "".join(printed).splitlines()
        if line.startswith("│")
    ]
    shapes = {shape for _, shape, _ in rows if shape}
    assert shapes <= {"(None, None, 6)", "(None, None, 13)"}
    counts = [int(count.replace(",", "")) for *_, count in rows if count]
    bias = 13 * ("a bias (13 params)" in printed[-1])
    assert sum(counts) + bias == model.count_params()
    assert output in "\n".join([*printed, *map(" | ".join, rows)])

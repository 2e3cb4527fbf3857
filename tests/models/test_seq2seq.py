import keras
import numpy as np
import pytest
import reference
from designs import DESIGNS, SCHEMES
from keras import ops
from layer_contract import HALF_POLICIES, to_numpy, with_random_weights

from keras_transformer import BeamSearch, GreedySearch, Seq2Seq
from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import PositionScheme

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

each_norm = pytest.mark.parametrize("normalize_first", [False, True])
each_half = pytest.mark.parametrize("policy", HALF_POLICIES)


def seq2seq(**arguments):
    sizes = {
        "num_layers": 2,
        "hidden_dim": HIDDEN_DIM,
        "intermediate_dim": 7,
        "num_heads": NUM_HEADS,
        "vocabulary_size": VOCABULARY_SIZE,
    }
    return with_random_weights(Seq2Seq(**{**sizes, **arguments}))


@pytest.fixture(scope="module", params=[False, True], ids=["post-norm", "pre-norm"])
def model(request):
    return seq2seq(normalize_first=request.param)


@pytest.fixture(scope="module", params=DESIGNS)
def designed(request):
    """Of an even width of the heads, and pre-norm: see `test_stacks.py`."""
    arguments = {"num_heads": 2, "hidden_dim": 8, "normalize_first": True}
    return seq2seq(**{**arguments, **DESIGNS[request.param]()})


def logits_of(model, source, target):
    return to_numpy(model({"encoder_token_ids": source, "decoder_token_ids": target}))


def reference_logits(model, source, target):
    """The whole model in float64 NumPy."""
    first = model.normalize_first
    embeddings = model.target_embedding.get_weights()[0].astype("float64")
    source_mask = (source != 0)[:, None, :]
    encoded = _embed(model.source_embedding.get_weights()[0], source)
    for block in model.encoder.blocks:
        encoded, _ = reference.encoder_block(
            block.get_weights(), encoded, source_mask, first
        )
    if first:
        encoded = reference.layer_norm(model.encoder.norm.get_weights(), encoded)
    decoded = _embed(embeddings, target)
    causal_mask = reference.causal_mask(target.shape[1], target.shape[1])
    for block in model.decoder.blocks:
        decoded, _, _ = reference.decoder_block(
            block.get_weights(), decoded, encoded, causal_mask, source_mask, first
        )
    if first:
        decoded = reference.layer_norm(model.decoder.norm.get_weights(), decoded)
    if model.tie_embeddings == "none":
        kernel, *bias = model.output_dense.get_weights()
        return decoded @ kernel + sum(bias)
    bias = to_numpy(model.tied_output_bias) if model.output_bias else 0
    return decoded @ embeddings.T + bias


def _embed(embeddings, token_ids):
    positions = reference.positional_encoding(range(token_ids.shape[1]), HIDDEN_DIM)
    return embeddings.astype("float64")[token_ids] * HIDDEN_DIM**0.5 + positions


# The call.


@each_norm
@pytest.mark.parametrize("tie_embeddings", ["all", "target", "none"])
def test_logits_are_those_of_the_paper(normalize_first, tie_embeddings):
    model = seq2seq(normalize_first=normalize_first, tie_embeddings=tie_embeddings)
    expected = reference_logits(model, SOURCE, TARGET)
    np.testing.assert_allclose(to_numpy(model(INPUTS)), expected, rtol=1e-4, atol=3e-5)


def test_blocks_are_pre_norm_by_default():
    model = seq2seq()
    pre_norm = seq2seq(normalize_first=True)
    post_norm = seq2seq(normalize_first=False)
    logits = logits_of(model, SOURCE, TARGET)
    np.testing.assert_array_equal(logits, logits_of(pre_norm, SOURCE, TARGET))
    assert len(model.weights) == len(post_norm.weights) + 4  # two normalisations


def test_two_vocabularies():
    model = seq2seq(
        vocabulary_size=None, source_vocabulary_size=17, target_vocabulary_size=13
    )
    source = SOURCE + 4 * (SOURCE > 0)
    expected = reference_logits(model, source, TARGET)
    assert expected.shape == (BATCH, TARGET_LENGTH, 13)
    logits = logits_of(model, source, TARGET)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
@pytest.mark.parametrize("output_bias", [False, True])
def test_output_bias(tie_embeddings, output_bias):
    options = {"tie_embeddings": tie_embeddings, "output_bias": output_bias}
    model = seq2seq(**options, num_layers=1)
    biases = [
        weight
        for weight in model.weights
        if "output" in weight.path and weight.shape == (VOCABULARY_SIZE,)
    ]
    assert len(biases) == output_bias
    expected = reference_logits(model, SOURCE, TARGET)
    np.testing.assert_allclose(to_numpy(model(INPUTS)), expected, rtol=1e-4, atol=3e-5)
    result = model.generate(SOURCE, GreedySearch(), max_length=5)
    scores = model.score(SOURCE, result.token_ids[:, 0]).scores
    np.testing.assert_allclose(result.scores[:, 0], scores, atol=1e-4)


def test_unscaled_embeddings():
    model = seq2seq(scale_embeddings=False, tie_embeddings="none")
    scaled = seq2seq(tie_embeddings="none")
    scaled.set_weights(model.get_weights())
    for embedding in (scaled.source_embedding, scaled.target_embedding):
        table = embedding.get_weights()[0]
        embedding.set_weights([table / HIDDEN_DIM**0.5])
    expected = reference_logits(scaled, SOURCE, TARGET)
    np.testing.assert_allclose(to_numpy(model(INPUTS)), expected, rtol=1e-4, atol=3e-5)


def test_a_decoder_of_fewer_layers():
    model = seq2seq(num_layers=3, num_decoder_layers=2)
    assert (len(model.encoder.blocks), len(model.decoder.blocks)) == (3, 2)
    expected = reference_logits(model, SOURCE, TARGET)
    np.testing.assert_allclose(to_numpy(model(INPUTS)), expected, rtol=1e-4, atol=3e-5)
    assert model.align(SOURCE, TARGET, layer=-1)[1].attention.shape[1] == SOURCE_LENGTH
    with pytest.raises(ValueError, match="the decoder has 2 layers; .*`layer=2`"):
        model.align(SOURCE, TARGET, layer=2)


def test_dtype_and_symbolic_shape(model):
    assert keras.backend.standardize_dtype(model(INPUTS).dtype) == "float32"
    symbolic = {name: keras.Input((None,), dtype="int32") for name in INPUTS}
    assert model(symbolic).shape == (None, None, VOCABULARY_SIZE)


def test_more_source_padding_changes_nothing(model):
    longer = np.pad(SOURCE, [(0, 0), (0, 6)])
    np.testing.assert_allclose(
        logits_of(model, longer, TARGET), to_numpy(model(INPUTS)), atol=3e-5
    )


def test_rows_do_not_depend_on_the_batch(model):
    together = to_numpy(model(INPUTS))
    for row in range(BATCH):
        alone = logits_of(model, SOURCE[row : row + 1], TARGET[row : row + 1])
        np.testing.assert_allclose(alone[0], together[row], atol=3e-5)


def test_later_target_tokens_do_not_leak(model):
    changed = TARGET.copy()
    changed[:, 2] = 5 + (TARGET[:, 2] == 5)
    logits, expected = logits_of(model, SOURCE, changed), to_numpy(model(INPUTS))
    np.testing.assert_allclose(logits[:, :2], expected[:, :2], atol=1e-6)
    assert (np.abs(logits[:, 2] - expected[:, 2]).max(axis=-1) > 1e-3).all()


def test_rows_of_padding_are_finite_and_change_no_other_row(model):
    source, target = SOURCE.copy(), TARGET.copy()
    source[1] = target[1] = 0
    logits = logits_of(model, source, target)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(
        logits[[0, 2]], to_numpy(model(INPUTS))[[0, 2]], atol=3e-5
    )


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


def test_dropout_only_in_training():
    model = seq2seq(dropout=0.5)
    trained = to_numpy(model(INPUTS, training=True))
    assert np.abs(trained - to_numpy(model(INPUTS))).max() > 1e-2
    encoded = [to_numpy(model.encode(SOURCE, training=t)) for t in (True, False, None)]
    assert encoded[0].shape == (BATCH, SOURCE_LENGTH, HIDDEN_DIM)
    assert np.abs(encoded[0] - encoded[1]).max() > 1e-2
    np.testing.assert_array_equal(encoded[1], encoded[2])


@each_half
def test_half_precision(policy):
    model = seq2seq(num_layers=1, dtype=policy)
    source = np.vstack([SOURCE, np.zeros_like(SOURCE[:1])])
    target = np.vstack([TARGET, TARGET[:1]])
    logits = model({"encoder_token_ids": source, "decoder_token_ids": target})
    assert keras.backend.standardize_dtype(logits.dtype) == HALF_POLICIES[policy]
    assert np.isfinite(to_numpy(logits)).all()
    assert all(weight.dtype == "float32" for weight in model.weights)


# The design of the blocks.


def test_a_design_is_that_of_both_stacks(designed):
    for stack in (designed.encoder, designed.decoder):
        own, stacked = designed.get_config(), stack.get_config()
        for name in ("attention", "feed_forward", "residual"):
            assert stacked[f"{name}_options"] == own[f"{name}_options"]
        added = designed.positions.added_to_inputs
        assert stack.positions is (None if added else designed.positions)
    assert designed.positions.weights == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_encoding_is_added_before_the_blocks(scheme):
    model = seq2seq(num_heads=2, hidden_dim=8, positions=SCHEMES[scheme]())
    added = [model.source_encoding, model.target_encoding]
    if not model.positions.added_to_inputs:
        assert added == [None, None]
        return
    assert added[0] is not added[1]
    assert all(type(copy) is type(model.positions) for copy in added)
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    assert {block.positions for block in blocks} == {None}


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
def test_positions_tell_the_order_of_the_source(scheme):
    positions = SCHEMES[scheme]() if scheme else PositionScheme()
    arguments = {"num_heads": 2, "hidden_dim": 8, "normalize_first": True}
    model, source = seq2seq(positions=positions, **arguments), SOURCE[1:2]
    logits = logits_of(model, source, TARGET[1:2])
    permuted = logits_of(model, source[:, [3, 0, 4, 2, 1]], TARGET[1:2])
    difference = np.abs(logits - permuted).max()
    assert difference > 1e-3 if scheme else difference < 1e-5


def test_more_padding_changes_no_design(designed):
    longer = np.pad(SOURCE, [(0, 0), (0, 6)])
    expected = to_numpy(designed(INPUTS))
    logits = logits_of(designed, longer, TARGET)
    np.testing.assert_allclose(logits, expected, atol=3e-5)


def test_scores_under_jit():
    model = seq2seq(num_heads=2, hidden_dim=8, **DESIGNS["modern"]())

    def call(source, target):
        inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
        return model(inputs, return_attention_scores=True)

    tokens = [ops.convert_to_tensor(x, "int32") for x in (SOURCE, TARGET)]
    logits, scores = compile_function(call, model)(*tokens)
    expected, expected_scores = call(*tokens)
    np.testing.assert_allclose(to_numpy(logits), to_numpy(expected), atol=3e-5)
    assert scores.keys() == {"encoder", "decoder", "cross"}
    for name, layers in scores.items():
        assert len(layers) == 2
        for one, other in zip(layers, expected_scores[name], strict=True):
            np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-5)


# The steps.


def test_steps_equal_the_call(model):
    state = model.start_decoding(SOURCE, num_beams=1, max_length=TARGET_LENGTH + 3)
    steps = []
    for index in range(TARGET_LENGTH):
        tokens = ops.convert_to_tensor(TARGET[:, index : index + 1], "int32")
        logits, state = model.decode_step(tokens, index, state)
        steps.append(to_numpy(logits)[:, 0])
    np.testing.assert_allclose(
        np.stack(steps, axis=1), to_numpy(model(INPUTS)), rtol=1e-4, atol=3e-5
    )


def test_steps_of_reordered_beams_equal_calls_of_their_histories(model):
    rng, num_beams, length = np.random.default_rng(3), 4, 4
    histories = np.zeros((BATCH, num_beams, length), "int32")
    histories[:, :, 0] = START
    state = model.start_decoding(SOURCE, num_beams, max_length=2)
    for index in range(length):
        if index == 2:
            state = model.extend_state(state, max_length=length + 1)
        tokens = ops.convert_to_tensor(histories[:, :, index])
        logits, state = model.decode_step(tokens, index, state)
        expected = logits_of(
            model,
            np.repeat(SOURCE, num_beams, axis=0),
            histories.reshape(BATCH * num_beams, length),
        )[:, index].reshape(BATCH, num_beams, -1)
        np.testing.assert_allclose(to_numpy(logits), expected, rtol=1e-4, atol=3e-5)
        parents = rng.integers(0, num_beams, (BATCH, num_beams), "int32")
        state = model.reorder_state(state, ops.convert_to_tensor(parents))
        histories = np.take_along_axis(histories, parents[:, :, None], axis=1)
        # Positions behind the next one are filled too: no step sees them yet.
        new_tokens = rng.integers(4, VOCABULARY_SIZE, (BATCH, num_beams, 1))
        histories[:, :, index + 1 :] = new_tokens


@each_half
def test_steps_in_half_precision(policy):
    model = seq2seq(num_layers=1, normalize_first=True, dtype=policy)
    state = model.start_decoding(SOURCE, num_beams=2, max_length=3)
    tokens = ops.convert_to_tensor(TARGET[:, :2], "int32")
    for index in range(2):
        logits, state = model.decode_step(tokens, index, state)
        assert np.isfinite(to_numpy(logits)).all()


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(3, num_hypotheses=2)])
def test_the_search_equals_a_search_step_by_step(search):
    model = seq2seq(num_layers=1)
    source_length = SOURCE.shape[1]
    most = source_length + 11  # more than there is room for at first
    limits = {"max_length": most, "min_length": most - 1}
    found = model.search(SOURCE, search, **limits)
    inputs = model.search_inputs(SOURCE, **limits)
    state = model.start_decoding(SOURCE, search.num_beams, most)
    state = search.start(model, inputs, state, most)
    while not to_numpy(state.done).all():
        state = search.advance(model, inputs, state)
    assert int(state.index) >= most - 1
    for one, other in zip(found, search.result(model, state), strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-4)


def test_the_search_has_the_score_of_the_call(model):
    result = model.search(SOURCE, GreedySearch(), max_length=4)
    token_ids, lengths, scores = map(ops.convert_to_numpy, result)
    logits = reference_logits(
        model, SOURCE, np.insert(token_ids[:, 0, :-1], 0, START, axis=1)
    )
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    for row, length in enumerate(lengths[:, 0]):
        chosen = log_probs[row, np.arange(length), token_ids[row, 0, :length]]
        np.testing.assert_allclose(scores[row, 0], chosen.sum(), atol=1e-4)


def test_an_output_is_at_most_50_tokens_longer_than_its_source():
    model = seq2seq(num_layers=1)
    result = _endless(model).search(SOURCE, GreedySearch())
    lengths = ops.convert_to_numpy(result.lengths)[:, 0].tolist()
    assert lengths == [3 + 50, 5 + 50, 1 + 50]


def test_max_target_length_limits_every_output():
    model = _endless(seq2seq(num_layers=1, max_target_length=7))
    for max_length, expected in {None: 7, 5: 5}.items():
        result = model.search(SOURCE, GreedySearch(), max_length)
        assert ops.convert_to_numpy(result.lengths).tolist() == [[expected]] * BATCH


def _endless(model):
    """The model without its end token: the opposite of its most probable one."""
    embeddings = model.target_embedding.get_weights()[0]
    scale, offset = model.decoder.norm.get_weights()
    model.decoder.norm.set_weights([0 * scale, offset])
    embeddings[END] = -50.0 * offset
    model.target_embedding.set_weights([embeddings])
    return model


# Errors.


@pytest.mark.once("torch")
def test_hidden_dim_must_be_divisible_by_num_heads():
    message = "`hidden_dim` must be divisible by `num_heads`; received `hidden_dim=7`"
    with pytest.raises(ValueError, match=message):
        seq2seq(hidden_dim=7)


COUNTS = ["num_layers", "num_decoder_layers", "hidden_dim", "intermediate_dim"]
COUNTS += ["num_heads", "vocabulary_size", "max_source_length", "max_target_length"]


@pytest.mark.once("torch")
@pytest.mark.parametrize("number", [0, -2, 2.0])
@pytest.mark.parametrize("name", COUNTS)
def test_sizes_must_be_positive(name, number):
    message = f"`{name}` must be an int of at least 1; received `{name}={number}`"
    with pytest.raises(ValueError, match=message):
        seq2seq(**{name: number})


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
        ({}, "Logits: (None, None, 13), weights of target_embedding"),
        (
            {"output_bias": True, "positions": SCHEMES["learned"]()},
            "Logits: (None, None, 13), weights of target_embedding and a bias (13 ",
        ),
        ({"tie_embeddings": "none"}, "output (Dense) | (None, None, 13) | 91"),
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

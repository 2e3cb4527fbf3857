import keras
import numpy as np
import pytest
from layer_contract import to_numpy, with_random_weights

from keras_transformer import GreedySearch, Perplexity, Seq2Seq
from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.text import CharacterTokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SOURCE = CharacterTokenizer([*SPECIAL, *"abcdef"])
TARGET = CharacterTokenizer([*SPECIAL, *"UVWXYZÄ"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
SOURCES = [[4, 5, 6, 3], [9, 3], [7, 8, 4, 7, 5, 8, 8, 9, 3], [5, 5, 3], [8, 3]]
TARGETS = [[9, 3], [4, 10, 7, 3], [5, 3], [3], [8, 8, 8, 9, 9, 3]]
once = pytest.mark.once("torch")


def seq2seq(**arguments):
    model = Seq2Seq(
        **SIZES,
        normalize_first=True,
        source_tokenizer=SOURCE,
        target_tokenizer=TARGET,
        **arguments,
    )
    return with_random_weights(model)


@pytest.fixture(scope="module")
def model():
    return seq2seq(max_source_length=9, max_target_length=7)


def padded(rows):
    return np.array([row + [0] * (11 - len(row)) for row in rows])


def reference_score(model, source, target):
    """One pair alone, in float64 from the logits."""
    decoder = [model.start_token_id, *target[:-1]]
    inputs = {"encoder_token_ids": [source], "decoder_token_ids": [decoder]}
    inputs = {name: np.array(ids) for name, ids in inputs.items()}
    logits = to_numpy(model(inputs))[0].astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return log_probabilities[np.arange(len(target)), target]


def test_scores_are_sums_of_log_probabilities(model):
    result = model.score(SOURCES, TARGETS, batch_size=2)
    assert isinstance(result, ScoreResult)
    pairs = zip(SOURCES, TARGETS, strict=True)
    tokens = [reference_score(model, *pair) for pair in pairs]
    expected = [row.sum() for row in tokens]
    for row, scores in zip(tokens, result.token_scores, strict=True):
        assert scores.dtype == "float32"
        np.testing.assert_allclose(scores, row, atol=1e-5)
    np.testing.assert_allclose(result.scores, expected, rtol=1e-5)
    np.testing.assert_array_equal(result.lengths, [2, 4, 2, 1, 6])
    assert (result.scores.dtype, result.lengths.dtype) == ("float32", "int32")
    perplexity = np.exp(-sum(expected) / 15)
    np.testing.assert_allclose(result.perplexity, perplexity, rtol=1e-6)
    # Weights are read at each call.
    weights = model.get_weights()
    model.set_weights([0 * weight for weight in weights])
    scored = model.score(SOURCES, TARGETS, batch_size=2)
    np.testing.assert_allclose(scored.scores, -np.log(11) * result.lengths, rtol=1e-6)
    model.set_weights(weights)


@pytest.fixture
def result(model):
    return model.score(SOURCES, TARGETS)


@once
def test_perplexity_is_that_of_evaluate(model, result):
    inputs = {
        "encoder_token_ids": padded(SOURCES),
        "decoder_token_ids": padded([[2, *row[:-1]] for row in TARGETS]),
    }
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=[Perplexity()])
    logs = model.evaluate(
        inputs, padded(TARGETS), batch_size=3, return_dict=True, verbose=0
    )
    np.testing.assert_allclose(result.perplexity, logs["perplexity"], rtol=1e-5)


@once
def test_texts_are_scored_as_their_token_ids(model, result):
    sources, targets = (
        [text.decode() for text in tokenizer.detokenize(padded(rows)).numpy()]
        for tokenizer, rows in ((SOURCE, SOURCES), (TARGET, TARGETS))
    )
    assert targets[3] == ""
    scored = model.score(sources, targets)
    np.testing.assert_allclose(scored.scores, result.scores, rtol=1e-5)
    np.testing.assert_array_equal(scored.lengths, result.lengths)
    one = model.score(sources[1], targets[1])
    np.testing.assert_allclose(one.scores, result.scores[1:2], rtol=1e-5)
    beginnings = model.score(sources, targets, add_end=False)
    np.testing.assert_array_equal(beginnings.lengths, result.lengths - 1)
    for found, whole in zip(beginnings.token_scores, result.token_scores, strict=True):
        np.testing.assert_allclose(found, whole[:-1], rtol=1e-5)


@once
def test_padded_arrays_and_a_greedy_search(model, result):
    scored = model.score(padded(SOURCES), padded(TARGETS))
    np.testing.assert_allclose(scored.scores, result.scores, rtol=1e-5)

    found = model.generate(SOURCES, GreedySearch(), max_length=7)
    scored = model.score(SOURCES, found.token_ids[:, 0])
    np.testing.assert_array_equal(scored.lengths, found.lengths[:, 0])
    np.testing.assert_allclose(scored.scores, found.scores[:, 0], rtol=1e-5)


@once
def test_half_precision_sums_in_float32(result):
    model = seq2seq(dtype="mixed_bfloat16")
    scored = model.score(SOURCES, TARGETS)
    np.testing.assert_allclose(scored.scores, result.scores, rtol=0.05)
    model.set_weights([0 * weight for weight in model.get_weights()])
    scored = model.score(SOURCES, TARGETS)
    np.testing.assert_allclose(scored.scores, -np.log(11) * result.lengths, rtol=1e-6)


@once
def test_no_pairs_and_errors(model):
    scored = model.score([], [])
    assert scored.scores.shape == scored.lengths.shape == (0,)
    assert scored.perplexity == 1.0
    with pytest.raises(ValueError, match="received 1 targets and 2 sources"):
        model.score(["a", "b"], ["U"])
    message = r"`targets` must have token ids from 0 to 10 .* received \[11\] in row 1"
    with pytest.raises(ValueError, match=message):
        model.score([[4, 3], [4, 3]], [[4, 3], [11, 3]])
    message = "`sources` must have at most `max_source_length=9` tokens each; .* row 0"
    with pytest.raises(ValueError, match=message):
        model.score(["abcdefabc"], ["U"])
    message = "`targets` must have at most `max_target_length=7` tokens each; .* 8"
    with pytest.raises(ValueError, match=message):
        model.score(["a"], ["UVWXYZU"])
    with pytest.raises(ValueError, match="`targets` must be texts, lists of int"):
        model.score([[4, 3]], [[4.5, 3.0]])
    for size in (0, 2.5):
        with pytest.raises(ValueError, match=f"`batch_size` must be an int .*={size}`"):
            model.score(["a"], ["U"], batch_size=size)
    plain = Seq2Seq(**SIZES, vocabulary_size=11)
    with pytest.raises(ValueError, match="`sources` must be token ids for a model"):
        plain.score(["a"], [[4, 3]])


@once
def test_the_perplexity_of_a_model_without_probability_for_a_token():
    result = ScoreResult(np.float32([-2000.0]), np.int32([2]), [])
    assert result.perplexity == float("inf")

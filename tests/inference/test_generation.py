import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_contract import with_random_weights

from keras_transformer import (
    BeamSearch,
    GreedySearch,
    NoRepeatNGram,
    RelativeLength,
    Sampling,
    SearchResult,
    Seq2Seq,
)
from keras_transformer.inference.batch_search import search_batch
from keras_transformer.inference.request import Request
from keras_transformer.text import CharacterTokenizer

SOURCE = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])
TARGET = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"UVWXYZÄ"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
GREEDY, N_BEST = GreedySearch(), BeamSearch(3, num_hypotheses=2)
TEXTS = ["abc", "", "f", "deadbeef"]
# Three of these and a fourth row of padding are one batch, as are the four texts.
ROWS = [[4, 5, 6, 3], [9, 3], [7, 8, 4, 7, 5, 8, 8, 9, 3]]
once = pytest.mark.once("torch")


@pytest.fixture(scope="module")
def model():
    model = Seq2Seq(
        **SIZES,
        normalize_first=True,
        max_source_length=9,
        max_target_length=5,
        source_tokenizer=SOURCE,
        target_tokenizer=TARGET,
    )
    rng = np.random.default_rng(1)  # the outputs differ, in their lengths too
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


def check_equal(result, expected):
    np.testing.assert_array_equal(result.lengths, expected.lengths)
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-4)
    length = min(result.token_ids.shape[2], expected.token_ids.shape[2])
    np.testing.assert_array_equal(
        result.token_ids[:, :, :length], expected.token_ids[:, :, :length]
    )


def test_texts_equal_the_outputs_of_their_token_ids(model):
    result = model.generate(ROWS, N_BEST)
    assert isinstance(result, SearchResult)
    assert result.token_ids.shape == (3, 2, result.lengths.max())
    assert result.lengths.shape == result.scores.shape == (3, 2)
    assert [part.dtype for part in result] == ["int32", "int32", "float32", "bool"]
    assert all(isinstance(part, np.ndarray) for part in result)
    assert (np.diff(result.scores, axis=1) <= 0).all()
    texts, scores = model.generate(TEXTS, N_BEST, return_scores=True)
    expected = TARGET.detokenize(result.token_ids.reshape(6, -1)).numpy()
    given = [text.encode() for i in (0, 2, 3) for text in texts[i]]
    assert given == expected.tolist()
    assert len(set(given)) > 3 and len(set(map(len, given))) > 2
    np.testing.assert_allclose(scores[[0, 2, 3]], result.scores, atol=1e-4)
    # An empty text gives an empty text.
    assert texts[1] == ["", ""] and scores[1].tolist() == [0.0, 0.0]
    padded = np.zeros((3, 11), "int64")
    for row, token_ids in enumerate(ROWS):
        padded[row, : len(token_ids)] = token_ids
    check_equal(model.generate(padded, N_BEST), result)


def test_outputs_longer_than_the_first_part_of_a_search():
    """Their search is continued with more room, and equals one in one part."""
    model = Seq2Seq(source_vocabulary_size=10, target_vocabulary_size=9, **SIZES)
    with_random_weights(model)
    rows = [[4, 5, 3], [8, 5, 3]]
    result = model.generate(rows, GREEDY, 40, min_length=30)
    assert result.lengths.min() >= 30
    expected = search_batch(model, np.array(rows), Request(GREEDY, 40, 30))
    check_equal(result, SearchResult(*map(keras.ops.convert_to_numpy, expected)))


def test_samples_depend_on_the_source_and_the_seed_alone(model):
    search = Sampling(3, temperature=2.0)
    result = model.generate(ROWS, search, seed=5)
    turned = model.generate(ROWS[::-1], search, seed=5)
    check_equal(SearchResult(*(part[::-1] for part in turned)), result)
    assert (
        result.scores.tolist() != model.generate(ROWS, search, seed=6).scores.tolist()
    )
    keras.utils.set_random_seed(7)
    one = model.generate(ROWS, search)
    keras.utils.set_random_seed(7)
    check_equal(model.generate(ROWS, search), one)


@once
def test_order_and_batch_size_change_nothing(model):
    result = model.generate(ROWS, N_BEST)
    for batch_size in (1, 2):
        turned = model.generate(ROWS[::-1], N_BEST, batch_size=batch_size)
        check_equal(SearchResult(*(part[::-1] for part in turned)), result)
    repeated = model.generate(ROWS * 3, N_BEST, batch_size=4)
    check_equal(SearchResult(*(part[6:] for part in repeated)), result)
    check_equal(model.generate([np.array(row) for row in ROWS], N_BEST), result)


@once
def test_one_text_or_hypothesis(model):
    texts, scores = model.generate(TEXTS, GREEDY, return_scores=True)
    assert all(isinstance(text, str) for text in texts) and scores.shape == (4,)
    text, score = model.generate("deadbeef", GREEDY, return_scores=True)
    assert text == texts[3]
    np.testing.assert_allclose(score, scores[3], atol=1e-4)
    assert model.generate(b"deadbeef", GREEDY) == text
    assert model.generate([b"deadbeef"], GREEDY) == [text]
    hypotheses = model.generate("deadbeef", N_BEST)
    assert [hypotheses] == model.generate(["deadbeef"], N_BEST)


@once
def test_no_inputs_give_no_outputs(model):
    texts, scores = model.generate([], N_BEST, return_scores=True)
    assert texts == [] and scores.shape == (0, 2)
    assert model.generate(()) == model.generate(np.array([], str)) == []
    result = model.generate(np.zeros((0, 7), "int32"), N_BEST)
    assert result.token_ids.shape == (0, 2, 0)
    assert result.lengths.shape == result.scores.shape == (0, 2)
    plain = Seq2Seq(**SIZES, vocabulary_size=11)
    assert plain.generate([]).token_ids.shape == (0, 1, 0)


@once
def test_the_greatest_length(model):
    for options, most in (({}, 5), ({"max_length": 2}, 2)):
        result = model.generate(ROWS, GREEDY, **options)
        lengths = result.lengths[:, 0]
        assert lengths.max() <= most
        ends = result.token_ids[np.arange(3), 0, lengths - 1]
        assert (ends == model.end_token_id).all()
    options = {"min_length": RelativeLength(0.5), "max_length": RelativeLength(1, -1)}
    lengths = model.generate(ROWS, GREEDY, **options).lengths[:, 0]
    for row, length in zip(ROWS, lengths, strict=True):
        most = min(len(row) - 1, model.max_target_length)
        assert min(len(row) // 2, most) <= length <= most
    exact = model.generate(ROWS, N_BEST, min_length=4, max_length=4)
    assert (exact.lengths == 4).all()


@once
def test_tokens_that_the_tokenizer_lacks_are_unknown():
    """As of a model whose vocabulary was rounded up."""
    tokenizers = {"source_tokenizer": SOURCE, "target_tokenizer": TARGET}
    model = Seq2Seq(
        **SIZES, source_vocabulary_size=10, target_vocabulary_size=40, **tokenizers
    )
    with_random_weights(model)
    result = model.generate(ROWS, GREEDY, max_length=7)
    ids = result.token_ids[:, 0]
    assert (ids >= TARGET.vocabulary_size).any()
    known = np.where(ids < TARGET.vocabulary_size, ids, TARGET.unknown_token_id)
    expected = [text.decode() for text in TARGET.detokenize(known).numpy()]
    texts = ["abc", "f", "deadbeef"]
    assert model.generate(texts, GREEDY, max_length=7) == expected
    for text, wanted in zip(texts, expected, strict=True):
        assert "".join(model.stream(text, max_length=7)) == wanted
    tree = model.search_tree("abc", BeamSearch(2), max_length=3)
    assert any("<unk>" in path for path in tree.paths)


class Column:
    """A column of a table, whose first row is not number 0."""

    def __init__(self, values):
        self.values = dict(enumerate(values, start=1))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, number):
        return self.values[number]

    def __iter__(self):
        return iter(self.values.values())


def dataset(texts):
    return tf.data.Dataset.from_tensor_slices(list(texts))


CONTAINERS = {
    "array of objects": lambda texts: np.array(texts, object),
    "array of bytes": lambda texts: np.array([text.encode() for text in texts]),
    "iterator": iter,
    "column": Column,
    "tensor": tf.constant,
    "scalars": lambda texts: [*map(tf.constant, texts[:2]), *map(np.array, texts[2:])],
    "batches": lambda texts: dataset(texts).batch(3),
    "iterator of a dataset": lambda texts: dataset(texts).as_numpy_iterator(),
}


@once
@pytest.mark.parametrize("kind", CONTAINERS.values(), ids=CONTAINERS)
def test_texts_in_other_containers(model, kind):
    options = {"search": GREEDY, "max_length": 4}
    expected = model.generate(TEXTS, prefix=["X", "", "Y", ""], **options)
    given = kind(["X", "", "Y", ""])
    assert model.generate(kind(TEXTS), prefix=given, **options) == expected
    scores = model.score(TEXTS, expected).scores
    assert (model.score(kind(TEXTS), kind(expected)).scores == scores).all()
    assert len(model.align(kind(TEXTS), kind(["U", "VW", "", "X"]))) == 4


@once
@pytest.mark.parametrize("kind", [tf.constant, np.array])
def test_a_single_text_of_another_type(model, kind):
    text = model.generate("abc", GREEDY, prefix="X")
    assert model.generate(kind("abc"), GREEDY, prefix=kind("X")) == text
    assert "".join(model.stream(kind("abc"), GREEDY, prefix=kind("X"))) == text
    assert model.search_tree(kind("abc")) == model.search_tree(b"abc")


@once
def test_token_ids_in_other_containers(model):
    rows = [[4, 5, 3], [9, 8, 3], [6, 6, 3]]
    expected = model.generate(rows, GREEDY)
    ragged = tf.RaggedTensor.from_tensor(rows)
    for given in (tf.constant(rows), ragged, dataset(rows), dataset(rows).batch(2)):
        check_equal(model.generate(given, GREEDY), expected)


@once
def test_numbers_may_be_those_of_numpy():
    names = ("pad_token_id", "start_token_id", "end_token_id")
    numbers = {"max_source_length": 9, "max_target_length": 6, "vocabulary_size": 11}
    numbers |= dict(zip(names, (0, 2, 3), strict=True))
    model = Seq2Seq(**SIZES, **{k: np.int64(number) for k, number in numbers.items()})
    assert {type(getattr(model, name)) for name in numbers} == {int}
    plain = {"max_length": 4, "min_length": 2, "batch_size": 2, "seed": -5}
    numbers = {name: np.int64(number) for name, number in plain.items()}
    result = model.generate(ROWS, Sampling(2), **numbers)
    check_equal(result, model.generate(ROWS, Sampling(2), **plain))


@once
@pytest.mark.parametrize(
    "argument, call",
    {
        "inputs": lambda model, texts: model.generate(texts),
        "prefix": lambda model, texts: model.generate(["a", "b"], prefix=texts),
        "sources": lambda model, texts: model.score(texts, ["U", "V"]),
        "targets": lambda model, texts: model.align(["a", "b"], texts),
        "texts": lambda model, texts: model.source_tokenizer.tokenize(texts),
        "lines": lambda model, texts: CharacterTokenizer.train(lines=texts),
    }.items(),
)
def test_a_lone_surrogate_is_named(model, argument, call):
    place = "line 2" if argument == "lines" else "row 1"
    message = (
        f"`{argument}` must be valid Unicode; received the lone surrogate U[+]D83D at "
        f"position 2 of the text in {place}"
    )
    with pytest.raises(ValueError, match=message):
        call(model, ["a", "bc\ud83d"])


@dataclasses.dataclass
class Rule:
    """Not frozen, so that it has no hash."""

    def __call__(self, logits, history):
        return logits


INVALID_INPUTS = {
    "None": (["a", None], "`inputs` must .*received None in row 1"),
    "mixed": ([[5, 3], "a"], r"`inputs` must .*received \[5, 3\] in row 0"),
    "pairs": ([["a", "b"]], "one text in each row; received 2 texts in row 0: "),
    "two columns": (tf.constant([["a", "b"]]), "one text in each row; received 2"),
    "lone": ("\udc80", "`inputs` must be valid Unicode; .* row 0"),
    "negative": ([[4, 3], [5, -1, 3]], r"10 entries\); received \[-1\] in row 1"),
    "above": (
        [[4, 3], [5, 10, 3]],
        r"token ids from 0 to 9 .* received \[10\] in row 1",
    ),
    "too long": (
        ["a", "abcdefabc"],
        "at most `max_source_length=9` tokens each; received 10 tokens in row 1. Short",
    ),
    "floats": ([[4.5, 3.0]], "`inputs` must be texts, lists of int token ids or an"),
    "one list": ([4, 3], "`inputs` must be texts, lists of int token ids or an int"),
    "three axes": ([[[4, 3]]], "`inputs` must be texts, lists of int token ids or an"),
    "an int": (np.int64(5), "`inputs` must be texts, lists of int token ids or an"),
}


@once
@pytest.mark.parametrize("name", INVALID_INPUTS)
def test_invalid_inputs(model, name):
    inputs, message = INVALID_INPUTS[name]
    with pytest.raises(ValueError, match=message):
        model.generate(inputs)


@once
def test_texts_need_tokenizers():
    model = Seq2Seq(**SIZES, vocabulary_size=11)
    message = "`inputs` must be token ids for a model without tokenizers; received"
    for texts in ("abc", ["abc"]):
        with pytest.raises(ValueError, match=message):
            model.generate(texts)


@once
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": ["X"]}, "`prefix` must have one entry for each input; received 1"),
        ({"prefix": ["X", "XYZXYZ"]}, "`prefix` must have at most `max_target_length"),
        ({"prefix": ["X", "XYZXY"]}, "`prefix` must be shorter than the maximum"),
        ({"prefix": [[4], [4, 3]]}, "`prefix` must be shorter .* without the end"),
        ({"prefix": [[4], [12]]}, "`prefix` must have token ids from 0 to 10"),
        ({"prefix": ["XY", ""], "max_length": 2}, "`prefix` must be shorter than"),
        ({"min_length": -1}, "`min_length` must be at least 0; received"),
        ({"min_length": 4, "max_length": 3}, "`min_length` must be at most"),
        ({"max_length": 20.0}, "`max_length` must be an int or `Relat.*=20.0`"),
        ({"max_length": 0}, "`max_length` must be at least 1; .*`max_length=0`"),
        ({"min_length": None}, "`min_length` must be an int or .*`min_length=None`"),
        ({"batch_size": 2.0}, "`batch_size` must be an int; .*`batch_size=2.0`"),
        ({"batch_size": 0}, "`batch_size` must be at least 1; .*`batch_size=0`"),
        ({"seed": 2**31}, r"`seed` must be .* -2\*\*31 to .*`seed=2147483648`"),
        ({"seed": 1.5}, "`seed` must be an int from .*`seed=1.5`"),
        ({"search": "beam"}, "`search` must be a search such as .*`search="),
        ({"search": BeamSearch}, "`search` must be a search such as .*`search="),
        ({"search": GreedySearch([Rule()])}, "`search` must be hashable.*Rule()"),
    ],
)
def test_invalid_arguments(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.generate(["abc", "f"], **options)


@once
@pytest.mark.parametrize("kind", [GreedySearch, BeamSearch, Sampling])
def test_rules_are_a_list(kind):
    for rules in (NoRepeatNGram(2), [3], None):
        with pytest.raises(ValueError, match="`logits_processors` must be a list of"):
            kind(logits_processors=rules)


@once
@pytest.mark.parametrize("search", [GREEDY, N_BEST], ids=["greedy", "n-best"])
def test_prefixes_begin_the_outputs(model, search):
    prefix = ["XY", "", "ZÄW"]
    texts, scores = model.generate(
        ["abc", "f", "dead"], search, prefix=prefix, return_scores=True, seed=3
    )
    texts = [[text] if isinstance(text, str) else text for text in texts]
    for begin, hypotheses in zip(prefix, texts, strict=True):
        assert all(text.startswith(begin) for text in hypotheses)
    if search.num_hypotheses == 1:
        best = [hypotheses[0] for hypotheses in texts]
        expected = model.score(["abc", "f", "dead"], best).scores
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    free = model.generate("f", search, seed=3)
    assert texts[1] == ([free] if isinstance(free, str) else free)
    rows = model.target_tokenizer.tokenize(prefix).to_list()
    result = model.generate(ROWS, search, prefix=rows, seed=3)
    for row, hypotheses in zip(rows, result.token_ids.tolist(), strict=True):
        begins = [hypothesis[: len(row)] for hypothesis in hypotheses]
        assert begins == [row] * search.num_hypotheses


@once
def test_coverage_scores_are_those_of_the_models_attention(model):
    plain = BeamSearch(3, 0.0, num_hypotheses=1)
    search = BeamSearch(3, 0.0, coverage_penalty=0.3)
    (row,) = ROWS[:1]
    result = model.generate([row], search)
    target = result.token_ids[0, 0, : result.lengths[0, 0]]
    _, scores = model(
        {
            "encoder_token_ids": np.array([row]),
            "decoder_token_ids": np.array([[2, *target[:-1]]]),
        },
        return_attention_scores=True,
    )
    attention = keras.ops.convert_to_numpy(scores["cross"][-1])[0].mean(axis=0)
    covered = 0.3 * np.log(np.minimum(attention.sum(axis=0), 1.0)).sum()
    expected = model.score([row], [target.tolist()]).scores[0] + covered
    np.testing.assert_allclose(result.scores[0, 0], expected, atol=1e-4)
    assert model.generate([row], plain).scores[0, 0] >= expected


class Recorder(Seq2Seq):
    """A model that records the shapes of the batches of its searches."""

    shapes = ()

    def start_decoding(self, sources, *arguments, **options):
        self.shapes = {*self.shapes, tuple(sources.shape)}
        return super().start_decoding(sources, *arguments, **options)


@once
def test_batches_of_ten_sizes_have_few_shapes():
    model = Recorder(**SIZES, normalize_first=True, vocabulary_size=11)
    sizes = [(1, 3), (2, 5), (3, 16), (4, 9), (5, 17), (6, 20), (7, 24), (3, 12)]
    for count, longest in [*sizes, (8, 25), (8, 30)]:
        rows = [[4] * (longest - i) for i in range(count)]
        result = model.generate(rows, GREEDY, max_length=2)
        assert result.lengths.shape == (count, 1)
    assert model.shapes == {(1, 16), (2, 16), (4, 16), (8, 24), (8, 32)}


# Alignments.


@once
@pytest.mark.parametrize("search", [GREEDY, N_BEST], ids=["one", "n-best"])
def test_alignments_are_those_of_the_hypotheses(model, search):
    result, alignments = model.generate(
        ROWS, search, batch_size=2, return_alignments=True
    )
    check_equal(result, model.generate(ROWS, search))
    for row, ids, lengths, found in zip(
        ROWS, result.token_ids, result.lengths, alignments, strict=True
    ):
        found = found if search is N_BEST else [found]
        assert len(found) == search.num_hypotheses
        for hypothesis, length, alignment in zip(ids, lengths, found, strict=True):
            (expected,) = model.align([row], [hypothesis[:length].tolist()])
            np.testing.assert_allclose(
                alignment.attention, expected.attention, atol=1e-5
            )
            np.testing.assert_array_equal(alignment.positions, expected.positions)


@once
def test_alignments_of_texts_come_last(model):
    texts, scores, alignments = model.generate(
        TEXTS, N_BEST, return_scores=True, return_alignments=True, prefix=None
    )
    assert scores.shape == (4, 2)
    assert [len(row) for row in alignments] == [2, 2, 2, 2]
    for text, outputs, row in zip(TEXTS, texts, alignments, strict=True):
        for output, alignment in zip(outputs, row, strict=True):
            ends = 1 if text else 0  # an empty text has no output at all
            assert alignment.attention.shape == (len(output) + ends, len(text) + 1)
    text, alignment = model.generate("f", GREEDY, return_alignments=True)
    assert alignment.positions.tolist() == [0] * (len(text) + 1)
    assert model.generate([], return_alignments=True) == ([], [])
    with pytest.raises(ValueError, match="must have at least one token .*in row 1"):
        model.generate([[4, 3], []], return_alignments=True)


@pytest.mark.once("jax")
@pytest.mark.parametrize("search", [N_BEST, GREEDY])
def test_64_bit_types_of_jax_change_nothing(model, search):
    import jax

    options = {"constraints": [[[5, 6]], [[7]], []], "max_length": 6}
    if search is GREEDY:
        options = {"max_length": 6}
    expected = model.generate(ROWS, search, **options)
    jax.config.update("jax_enable_x64", True)
    try:
        check_equal(model.generate(ROWS, search, **options), expected)
    finally:
        jax.config.update("jax_enable_x64", False)

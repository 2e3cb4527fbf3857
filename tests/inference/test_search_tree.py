import numpy as np
import pytest

from keras_transformer import BeamSearch, CharacterTokenizer, GreedySearch, Seq2Seq
from keras_transformer.plotting import plot_search_tree

pytestmark = pytest.mark.once("torch")

TOKENIZER = CharacterTokenizer.train(lines=["a small toy"])
SEARCH = BeamSearch(3, num_hypotheses=2)


@pytest.fixture(scope="module")
def model():
    return Seq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        num_heads=2,
        source_tokenizer=TOKENIZER,
    )


GROUPS = BeamSearch(4, num_hypotheses=2, num_beam_groups=2, diversity_penalty=1.0)


@pytest.mark.parametrize("search", [SEARCH, GROUPS], ids=["beams", "groups"])
def test_holds_the_search_of_generate(model, search):
    [row] = TOKENIZER.tokenize(["a toy"], add_end=True).to_list()
    tree = model.search_tree(row, search, max_length=5)
    result = model.generate([row], search, max_length=5)
    rows, lengths, scores = (part[0] for part in result[:3])
    scores = scores[lengths > 0]  # Groups may end with the same hypothesis.
    expected = [
        tuple(row[:length]) for row, length in zip(rows, lengths, strict=True) if length
    ]
    assert [tree.paths[number] for number in tree.best] == expected
    np.testing.assert_allclose([tree.scores[i] for i in tree.best], scores, 1e-5)
    named = model.search_tree("a toy", search, max_length=5)
    vocabulary = TOKENIZER.get_vocabulary()
    assert named.paths == [tuple(vocabulary[i] for i in path) for path in tree.paths]
    assert named[1:] == tree[1:]


def test_every_unfinished_hypothesis_has_its_log_probability(model):
    row = [5, 6, 7, TOKENIZER.end_token_id]
    tree = model.search_tree(row, SEARCH, max_length=4)
    assert len(set(tree.paths)) == len(tree.paths) == len(tree.scores)
    ended = {path for path in tree.paths if path[-1] == TOKENIZER.end_token_id}
    open_paths = [path for path in tree.paths if path not in ended]
    for length in (1, 2):
        assert sum(len(path) == length for path in open_paths) == SEARCH.num_beams
    scored = model.score([row] * len(open_paths), [list(path) for path in open_paths])
    expected = [tree.scores[tree.paths.index(path)] for path in open_paths]
    np.testing.assert_allclose(scored.scores, expected, atol=1e-4)


def test_an_empty_text_and_a_search_without_beams(model):
    assert model.search_tree("", SEARCH, max_length=5) == ([], [], [])
    message = "`search` must be a `BeamSearch`, .* received `search=GreedySearch"
    with pytest.raises(ValueError, match=message):
        model.search_tree("a toy", GreedySearch())


def test_picture():
    with pytest.raises(ValueError, match="`paths` must be .* 1 paths and 0 scores"):
        plot_search_tree([("a",)], [])
    paths = [("a",), ("b",), ("a", "c"), ("a", "d"), ("a", "c", ".")]
    figure = plot_search_tree(paths, [-1.0, -2.0, -1.5, -3.0, -0.4], best=[4])
    axes = figure.axes[0]
    texts = {text.get_text(): text for text in axes.texts}
    assert set(texts) == {"a", "b", "c", "d", ".", "-2.00", "-3.00", "-0.40"}
    step, row = texts["c"].xy
    assert step == texts["d"].xy[0] == 2 and texts["."].xy == (3, row)
    assert row < texts["d"].xy[1] < texts["b"].xy[1]
    marked = [text for text in "abcd." if texts[text].get_bbox_patch().get_lw() > 1]
    assert marked == ["a", "c", "."]

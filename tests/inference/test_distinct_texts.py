"""N-best lists in which each text occurs once."""

import io

import numpy as np
import pytest
from layer_contract import with_random_weights

from keras_transformer import BeamSearch, Seq2Seq
from keras_transformer.file_translation import translate_stream
from keras_transformer.text import SentencePieceTokenizer

pytestmark = pytest.mark.once("torch")

TEXTS = ["a man", "", "two dogs run", "red"]
SEARCH = BeamSearch(8, num_hypotheses=8)


@pytest.fixture(scope="module")
def model():
    lines = ["aa aaa aaaa", "aaa aa a"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=9)
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        max_target_length=5,
        source_tokenizer=tokenizer,
    )
    return with_random_weights(model)


@pytest.fixture(scope="module")
def repeated(model):
    """The texts and scores of the search, in which texts are repeated."""
    return model.generate(TEXTS, SEARCH, return_scores=True)


def expected(texts, scores):
    """The best score of each text of a list, best first."""
    best = {}
    for text, score in zip(texts, scores, strict=True):
        if score > -np.inf:
            best[text] = max(score, best.get(text, -np.inf))
    return sorted(best.items(), key=lambda item: -item[1])


def test_each_text_is_returned_once(model, repeated):
    texts, scores, alignments = model.generate(
        TEXTS, SEARCH, return_scores=True, return_alignments=True, distinct_texts=True
    )
    wanted = [expected(*row) for row in zip(*repeated, strict=True)]
    assert any(len(row) < 8 for row in (wanted[0], *wanted[2:]))
    assert [len(row) for row in texts] == [len(row) for row in wanted]
    assert [len(row) for row in alignments] == [len(row) for row in wanted]
    assert scores.shape == (4, 8)
    for found, row, best in zip(texts, scores, wanted, strict=True):
        assert found == [text for text, _ in best]
        values = [score for _, score in best]
        np.testing.assert_allclose(row[: len(best)], values, atol=1e-5)
        assert (row[len(best) :] == -np.inf).all()
    assert texts[1] == [""]
    (one,) = model.generate(TEXTS[2:3], SEARCH, distinct_texts=True)
    assert one == model.generate(TEXTS[2], SEARCH, distinct_texts=True) == texts[2]


def test_lines_of_an_n_best_list(model, repeated):
    written = io.BytesIO()
    source = io.BufferedReader(io.BytesIO("\n".join(TEXTS).encode()))
    options = {"n_best": True, "distinct_texts": True}
    translate_stream(model, source, written, SEARCH, **options)
    lines = [line.split(" ||| ") for line in written.getvalue().decode().splitlines()]
    wanted = [expected(*row) for row in zip(*repeated, strict=True)]
    named = [(n, text) for n, row in enumerate(wanted) for text, _ in row]
    assert [(int(number), text) for number, text, _ in lines] == named


def test_token_ids_have_no_texts(model):
    with pytest.raises(ValueError, match="`distinct_texts` must be `False` for token"):
        model.generate([[4, 3]], SEARCH, distinct_texts=True)

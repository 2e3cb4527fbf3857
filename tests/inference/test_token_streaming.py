import os

import numpy as np
import pytest
from scripted_step import END, written_step

from keras_transformer import (
    BeamSearch,
    GreedySearch,
    NoRepeatNGram,
    RelativeLength,
    Sampling,
    Seq2Seq,
)
from keras_transformer.inference.streaming import _pieces, _possible_outputs
from keras_transformer.text import CharacterTokenizer

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdéf"])
once = pytest.mark.once("torch")
SEARCHES = {
    "logits processor": GreedySearch(logits_processors=[NoRepeatNGram(1)]),
    "samples": Sampling(3, temperature=1.5),
    "beams": BeamSearch(3, length_penalty=1.5, num_hypotheses=2),
    "groups": BeamSearch(
        4, 1.5, num_hypotheses=2, num_beam_groups=2, diversity_penalty=1.0
    ),
}


@pytest.fixture(scope="module")
def model():
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        max_source_length=11,
        source_tokenizer=LETTERS,
        target_tokenizer=LETTERS,
    )
    rng = np.random.default_rng(2)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


def test_tokens_equal_the_output_of_generate(model):
    search = SEARCHES["beams"]
    tokens = [*model.stream([4, 5, 3], search, max_length=6)]
    result = model.generate([[4, 5, 3]], search, max_length=6)
    assert tokens == result.token_ids[0, 0, : result.lengths[0, 0]].tolist()
    # Weights are read at each call.
    weights = model.get_weights()
    model.set_weights([-weight for weight in weights])
    assert [*model.stream([4, 5, 3], search, max_length=6)] != tokens
    model.set_weights(weights)


@once
@pytest.mark.parametrize("name", ["logits processor", "samples", "groups"])
def test_pieces_equal_the_output_of_generate(model, name):
    search = SEARCHES[name]
    options = {"min_length": 3, "max_length": RelativeLength(1, 4), "seed": 5}
    for text in ("féd", ""):
        pieces = [*model.stream(text, search, **options)]
        text = model.generate(text, search, **options)
        assert "".join(pieces) == (text if isinstance(text, str) else text[0])
        assert all(pieces)


@once
def test_tokens_are_yielded_when_all_hypotheses_agree():
    """Greedily at once; with beams when no hypothesis that can win differs."""
    step = written_step(
        {
            (): {2: 0.6, 3: 0.4},  # two beams, which differ
            (2,): {4: 1.0},
            (3,): {END: 1.0},
            (2, 4): {4: 1.0},
            (2, 4, 4): {END: 1.0},
        },
        otherwise=1e-9,
    )
    states = step.states(BeamSearch(2, length_penalty=0.0), max_length=4)
    agreed = [os.path.commonprefix(_possible_outputs(state)) for state in states]
    best = [2, 4, 4, END]
    assert agreed[0] == []
    assert all(prefix == best[: len(prefix)] for prefix in agreed)
    states = step.states(GreedySearch(), max_length=4)
    agreed = [os.path.commonprefix(_possible_outputs(state)) for state in states]
    assert agreed == [[2], [2, 4], [2, 4, 4], [2, 4, 4, END]]


@once
def test_prefixes_are_yielded_first(model):
    search = GreedySearch()
    pieces = [*model.stream("abc", search, prefix="fa", max_length=7)]
    assert pieces[:2] == ["f", "a"]
    assert "".join(pieces) == model.generate("abc", search, prefix="fa", max_length=7)
    # Without a search, it is that of `generate`.
    assert "".join(model.stream("abc", max_length=7)) == model.generate(
        "abc", max_length=7
    )


class Bytes:
    """A tokenizer whose tokens are bytes."""

    end_token_id = 0

    def detokenize(self, rows):
        import tensorflow as tf

        return tf.constant([bytes(t for t in row if t) for row in rows])


@once
def test_an_incomplete_character_is_not_yielded():
    tokens = [*"aé€b".encode(), 0]
    assert [*_pieces(iter(tokens), Bytes())] == ["a", "é", "€", "b"]
    assert [*_pieces(iter(["é".encode()[0], 0]), Bytes())] == ["\ufffd"]
    cut = "aé".encode()[:2]  # by the maximum length, without an end token
    assert [*_pieces(iter(cut), Bytes())] == ["a", "\ufffd"]


@once
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "abcdabcdabcd"}, "`inputs` must have at most"),
        ({"inputs": "abc", "max_length": 0}, "`max_length` must be at least 1"),
        ({"inputs": "abc", "search": "greedy"}, "`search` must be"),
        ({"inputs": "abc", "prefix": "abc", "max_length": 3}, "`prefix` must be short"),
    ],
)
def test_invalid_arguments(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.stream(**options)

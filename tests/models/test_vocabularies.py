import pytest

from keras_transformer import Seq2Seq
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once("torch")

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
BLOCKS = 2 * (4 * (6 * 6 + 6)) + 4 * (6 * 6 + 6) + 2 * (6 * 7 + 7 + 7 * 6 + 6) + 7 * 12


LOWER = CharacterTokenizer([*SPECIAL, *"abc"])
UPPER = CharacterTokenizer([*SPECIAL, *"XY"])
TWO = {"source_vocabulary_size": 13, "target_vocabulary_size": 11}


def test_numbers_of_parameters():
    for sizes, tie_embeddings, parameters in (
        ({"vocabulary_size": 13}, None, 13 * 6),
        ({"vocabulary_size": 13}, "target", 26 * 6),
        ({"vocabulary_size": 13}, "none", 39 * 6 + 13),
        (TWO, None, 24 * 6),
        (TWO, "none", 35 * 6 + 11),
    ):
        model = Seq2Seq(**SIZES, **sizes, tie_embeddings=tie_embeddings)
        assert model.count_params() == BLOCKS + parameters
        default = "target" if sizes is TWO else "all"
        assert model.tie_embeddings == (tie_embeddings or default)
        sides = (model.source_vocabulary_size, model.target_vocabulary_size)
        assert sides == ((13, 11) if sizes is TWO else (13, 13))
        assert model.vocabulary_size == sizes.get("vocabulary_size")


def test_sizes_are_those_of_the_tokenizers():
    model = Seq2Seq(**SIZES, source_tokenizer=LOWER, target_tokenizer=UPPER)
    assert (model.source_vocabulary_size, model.target_vocabulary_size) == (7, 6)
    shared = Seq2Seq(**SIZES, source_tokenizer=LOWER)
    assert shared.vocabulary_size == 7
    assert shared.target_tokenizer is LOWER
    roomy = Seq2Seq(**SIZES, source_tokenizer=LOWER, vocabulary_size=8)
    assert roomy.vocabulary_size == 8


def test_special_ids_are_those_of_the_tokenizers():
    model = Seq2Seq(**SIZES, source_tokenizer=LOWER, start_token_id=5)
    ids = model.pad_token_id, model.start_token_id, model.end_token_id
    assert ids == (0, 2, 3)


class Ending:
    """A tokenizer that ends its texts otherwise."""

    vocabulary_size, pad_token_id, start_token_id, end_token_id = 7, 0, 2, 4
    tokenize = None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "^`vocabulary_size`, or both .* must be given; .*`vocabulary_size=None`"),
        (
            {"source_vocabulary_size": 13},
            "^`vocabulary_size`, or both .* must be given",
        ),
        (
            {"vocabulary_size": 13, "source_vocabulary_size": 13},
            "^`vocabulary_size`, or both .* must be given; .*`vocabulary_size=13`",
        ),
        (
            {"vocabulary_size": 5, "source_tokenizer": LOWER},
            "size of the source must be at least 7, the number of tokens of "
            "`source_tokenizer`; received 5. Omit the sizes",
        ),
        (
            {"target_tokenizer": UPPER},
            "`source_tokenizer` must be given with `target_tokenizer`",
        ),
        (
            {"source_tokenizer": Ending(), "target_tokenizer": UPPER},
            "`source_tokenizer` must have the `end_token_id` of `target_tokenizer`; "
            "received `end_token_id=4` of the source, `end_token_id=3` of the target",
        ),
        ({**TWO, "pad_token_id": 11}, "`pad_token_id` must be from 0 to 10, .*=11`"),
        ({**TWO, "start_token_id": 11}, "`start_token_id` must be from 0 to 10"),
        ({**TWO, "end_token_id": -1}, "`end_token_id` must be from 0 to 10"),
        ({**TWO, "pad_token_id": 3}, "`pad_token_id` must not be `end_token_id`"),
        (
            {**TWO, "tie_embeddings": "all"},
            r"`tie_embeddings` must be one of \('target', 'none'\) with two "
            "vocabularies; received `tie_embeddings='all'`",
        ),
        (
            {"vocabulary_size": 13, "tie_embeddings": "both"},
            "`tie_embeddings` must be one of .* with one shared vocabulary; received",
        ),
    ],
)
def test_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, **options)


def test_padding_may_be_the_start():
    model = Seq2Seq(**SIZES, **TWO, pad_token_id=8, start_token_id=8)
    assert model.pad_token_id == model.start_token_id == 8

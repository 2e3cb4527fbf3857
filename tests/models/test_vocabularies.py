import pytest

from keras_transformer import Seq2Seq
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once("torch")

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
BLOCKS = 2 * (4 * (6 * 6 + 6)) + 4 * (6 * 6 + 6) + 2 * (6 * 7 + 7 + 7 * 6 + 6) + 7 * 12


@pytest.fixture(scope="module")
def tokenizers():
    return CharacterTokenizer([*SPECIAL, *"abc"]), CharacterTokenizer([*SPECIAL, *"XY"])


@pytest.mark.parametrize(
    "tie_embeddings, parameters",
    [(None, 13 * 6), ("all", 13 * 6), ("target", 26 * 6), ("none", 39 * 6 + 13)],
)
def test_one_vocabulary(tie_embeddings, parameters):
    model = Seq2Seq(**SIZES, vocabulary_size=13, tie_embeddings=tie_embeddings)
    assert model.count_params() == BLOCKS + parameters
    assert model.tie_embeddings == (tie_embeddings or "all")
    assert model.source_vocabulary_size == model.target_vocabulary_size == 13


@pytest.mark.parametrize(
    "tie_embeddings, parameters",
    [(None, 24 * 6), ("target", 24 * 6), ("none", 35 * 6 + 11)],
)
def test_two_vocabularies(tie_embeddings, parameters):
    model = Seq2Seq(
        **SIZES,
        source_vocabulary_size=13,
        target_vocabulary_size=11,
        tie_embeddings=tie_embeddings,
    )
    assert model.count_params() == BLOCKS + parameters
    assert model.vocabulary_size is None


def test_sizes_are_those_of_the_tokenizers(tokenizers):
    source, target = tokenizers
    model = Seq2Seq(**SIZES, source_tokenizer=source, target_tokenizer=target)
    assert (model.source_vocabulary_size, model.target_vocabulary_size) == (7, 6)
    shared = Seq2Seq(**SIZES, source_tokenizer=source)
    assert shared.vocabulary_size == 7
    assert shared.target_tokenizer is source
    roomy = Seq2Seq(**SIZES, source_tokenizer=source, vocabulary_size=8)
    assert roomy.vocabulary_size == 8


def test_special_ids_are_those_of_the_tokenizers(tokenizers):
    model = Seq2Seq(**SIZES, source_tokenizer=tokenizers[0], start_token_id=5)
    ids = model.pad_token_id, model.start_token_id, model.end_token_id
    assert ids == (0, 2, 3)


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"source_vocabulary_size": 13},
        {"target_vocabulary_size": 13},
        {"vocabulary_size": 13, "source_vocabulary_size": 13},
    ],
)
def test_missing_or_contradictory_sizes(sizes):
    message = (
        "`vocabulary_size`, or both `source_vocabulary_size` and "
        "`target_vocabulary_size`, or tokenizers must be given; received "
        f"`vocabulary_size={sizes.get('vocabulary_size')}`"
    )
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, **sizes)


def test_tokenizers_that_do_not_fit(tokenizers):
    message = (
        "The vocabulary size of the source must be at least 7, the number of tokens "
        "of `source_tokenizer`; received 5. Omit the sizes"
    )
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, vocabulary_size=5, source_tokenizer=tokenizers[0])


def test_a_target_tokenizer_alone(tokenizers):
    message = "`source_tokenizer` must be given with `target_tokenizer`"
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, target_tokenizer=tokenizers[1])


class Ending:
    """A tokenizer that ends its texts otherwise."""

    vocabulary_size, pad_token_id, start_token_id, end_token_id = 7, 0, 2, 4
    tokenize = None


def test_tokenizers_with_other_end_tokens(tokenizers):
    message = (
        "`source_tokenizer` must have the `end_token_id` of `target_tokenizer`; "
        "received `end_token_id=4` of the source, `end_token_id=3` of the target"
    )
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, source_tokenizer=Ending(), target_tokenizer=tokenizers[1])


TWO = {"source_vocabulary_size": 9, "target_vocabulary_size": 13}


@pytest.mark.parametrize(
    "name, token_id, most",
    [
        ("pad_token_id", 9, 8),
        ("pad_token_id", -1, 8),
        ("start_token_id", 13, 12),
        ("end_token_id", 13, 12),
        ("end_token_id", -1, 12),
    ],
)
def test_special_ids_outside_the_vocabulary(name, token_id, most):
    message = f"`{name}` must be from 0 to {most}, .*; received `{name}={token_id}`"
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, **TWO, **{name: token_id})


def test_padding_may_be_the_start_but_not_the_end():
    model = Seq2Seq(**SIZES, **TWO, pad_token_id=8, start_token_id=8)
    assert model.pad_token_id == model.start_token_id == 8
    with pytest.raises(ValueError, match="`pad_token_id` must not be `end_token_id`"):
        Seq2Seq(**SIZES, **TWO, pad_token_id=3)


@pytest.mark.parametrize("tie_embeddings", ["all", "source"])
def test_two_vocabularies_cannot_be_one_matrix(tie_embeddings):
    message = (
        r"`tie_embeddings` must be one of \('target', 'none'\) with two vocabularies; "
        f"received `tie_embeddings='{tie_embeddings}'`"
    )
    with pytest.raises(ValueError, match=message):
        Seq2Seq(
            **SIZES,
            source_vocabulary_size=13,
            target_vocabulary_size=11,
            tie_embeddings=tie_embeddings,
        )


def test_unknown_tying():
    message = "`tie_embeddings` must be one of .* with one shared vocabulary; received"
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, vocabulary_size=13, tie_embeddings="both")

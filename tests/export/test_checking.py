import pytest

from keras_transformer import CausalLM, Seq2Seq
from keras_transformer.export.checking import sample_texts
from keras_transformer.text import ByteTokenizer, CharacterTokenizer

pytestmark = pytest.mark.once("torch")

SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])


@pytest.mark.parametrize("limit", [2, 9, None])
def test_sample_texts_are_short_and_include_an_empty_one(limit):
    model = Seq2Seq(**SIZES, source_tokenizer=LETTERS, max_source_length=limit)
    *texts, empty = sample_texts(model)
    assert empty == ""
    assert set("abcde") <= set("".join(texts)) <= set("abcdef")
    lengths = LETTERS.tokenize(texts, add_end=True).row_lengths().numpy()
    assert 1 < max(lengths) <= (limit or 7)


def test_sample_texts_of_bytes_are_short():
    """Bytes of a character, which are no text, become characters of three bytes."""
    model = CausalLM(**SIZES, tokenizer=ByteTokenizer(), max_length=16)
    lengths = ByteTokenizer().tokenize(sample_texts(model)).row_lengths().numpy()
    assert 1 < max(lengths) <= 16

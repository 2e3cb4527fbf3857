import pytest
from training_text import LINES

from keras_transformer.text import (
    ByteTokenizer,
    CharacterTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)


@pytest.fixture(
    scope="session",
    params=[SentencePieceTokenizer, CharacterTokenizer, WordTokenizer, ByteTokenizer],
)
def tokenizer(request):
    if request.param is ByteTokenizer:
        return ByteTokenizer()
    size = 61 if request.param is SentencePieceTokenizer else None
    return request.param.train(lines=LINES, vocabulary_size=size)

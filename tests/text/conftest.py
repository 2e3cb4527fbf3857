import pytest
from training_text import LINES

from keras_transformer.text import (
    CharacterTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)


@pytest.fixture(
    scope="session", params=[SentencePieceTokenizer, CharacterTokenizer, WordTokenizer]
)
def tokenizer(request):
    size = 61 if request.param is SentencePieceTokenizer else None
    return request.param.train(lines=LINES, vocabulary_size=size)

"""Strings to token ids and back, inside the TensorFlow graph.

Four tokenizers share one interface (`Tokenizer`): `SentencePieceTokenizer`
(subwords), `CharacterTokenizer` and `WordTokenizer`, each trained by its `train`, and
`MarianTokenizer`, which comes with a trained model. Each is kept in one JSON file
(`save`, `Tokenizer.load`) or whole in a model's configuration, and built of core
TensorFlow operations and tensorflow-text's SentencePiece operations only, so that a
SavedModel can hold it.
"""

from keras_transformer.text.lines import (
    Paths,
    decode_line,
    numbered_lines,
    open_text,
    path_list,
    read_lines,
)
from keras_transformer.text.lookup_tokenizers import CharacterTokenizer, WordTokenizer
from keras_transformer.text.marian_tokenizer import MarianTokenizer
from keras_transformer.text.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
    Subwords,
)
from keras_transformer.text.tokenizer import Tokenizer

__all__ = [
    "CharacterTokenizer",
    "MarianTokenizer",
    "Paths",
    "SentencePieceTokenizer",
    "Subwords",
    "Tokenizer",
    "WordTokenizer",
    "decode_line",
    "numbered_lines",
    "open_text",
    "path_list",
    "read_lines",
]

"""Tokenizers, which convert strings to token ids and back inside TensorFlow graphs.

All tokenizers share the interface `Tokenizer`: `SentencePieceTokenizer` (subwords),
`CharacterTokenizer`, `WordTokenizer`, `ByteTokenizer`, `MarianTokenizer` for trained
Marian models, `KerasHubTokenizer` for tokenizers of KerasHub, and
`HuggingFaceTokenizer` for those of Hugging Face; `FramedTokenizer` adds tokens such as
the one of a language to another tokenizer. The first three are trained by their `train`
method. `save` writes a tokenizer to one JSON file, which `Tokenizer.load`
reads; the configuration of a model contains its tokenizers. Tokenizers consist of
operations of TensorFlow and tensorflow-text, so a SavedModel can contain them. They are
Keras layers, which precede other layers in models of strings with TensorFlow.

`keras_transformer_runtime.text_files` reads the text files of the whole library, and
`keras_transformer_runtime.text_rows` those with columns.
"""

from keras_transformer_runtime.packages import require_extra

require_extra("tensorflow", "`keras_transformer.text`")

from keras_transformer.text.framed_tokenizer import FramedTokenizer
from keras_transformer.text.hugging_face_tokenizer import HuggingFaceTokenizer
from keras_transformer.text.keras_hub_tokenizer import KerasHubTokenizer
from keras_transformer.text.lookup_tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    WordTokenizer,
)
from keras_transformer.text.marian_tokenizer import MarianTokenizer
from keras_transformer.text.prompt_tokenizer import PromptTokenizer
from keras_transformer.text.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
    Subwords,
)
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer_runtime.text_files import (
    Paths,
    decode_line,
    numbered_lines,
    open_text,
    path_list,
    read_lines,
)

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "FramedTokenizer",
    "HuggingFaceTokenizer",
    "KerasHubTokenizer",
    "MarianTokenizer",
    "Paths",
    "PromptTokenizer",
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

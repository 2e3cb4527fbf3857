"""Translation of files and pipes of any size with a Keras model.

- `translation`: the functions `translate_file` and `translate_stream`
- `workers`: processes of Ray that decode the batches
"""

from keras_transformer.file_translation.translation import (
    translate_file,
    translate_stream,
)
from keras_transformer_runtime.phrase_dictionary import PhraseDictionary

__all__ = ["PhraseDictionary", "translate_file", "translate_stream"]

"""Translation of files and pipes of any size.

- `translation`: the functions `translate_file` and `translate_stream`
- `line_windows`: lines read in windows that are sorted by length
- `unfinished_file`: the target of a translation that may be stopped and resumed
- `workers`: processes of Ray that decode the batches
"""

from keras_transformer.inference.file_translation.translation import (
    translate_file,
    translate_stream,
    written_at_once,
)

__all__ = ["translate_file", "translate_stream", "written_at_once"]

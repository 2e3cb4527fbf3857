"""Writes a SavedModel of a classifier or an encoder, which takes strings."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.encoder_inputs import (
    EncodedTexts,
    EncodedWords,
    encode_texts,
    encode_words,
    white_space_words,
)
from keras_transformer.dataset.labelled_batches import asserted
from keras_transformer.export.checking import (
    call_signature,
    check_weights,
    texts_of_vocabulary,
)
from keras_transformer.export.encoder_checks import (
    AnyEncoder,
    Output,
    check_outputs,
    checked_output,
    encoder_of,
    sample_inputs,
)
from keras_transformer.export.saved_model.compact_graph import compact
from keras_transformer.export.saved_model.model_card import (
    Facts,
    describe_model,
    describe_signatures,
    model_name,
    package_versions,
    write_card,
)
from keras_transformer.export.saved_model.search_functions import (
    Outputs,
    input_spec,
    traced,
)
from keras_transformer.export.tensorflow_process import write_with_tensorflow
from keras_transformer.models import TextClassifier, TextEncoder, TokenClassifier
from keras_transformer_runtime.files import new_folder
from keras_transformer_runtime.labels.predictions import THRESHOLD
from keras_transformer_runtime.model_paths import is_version

_USAGE = """```python
import tensorflow as tf
import tensorflow_text  # registers the operations of the tokenizer

serve = tf.saved_model.load("{folder}").signatures["serving_default"]
print(serve({arguments}))
```"""


def export_encoder_saved_model(
    model: AnyEncoder,
    filepath: str | os.PathLike,
    *,
    pooling: str | None = None,
    normalize: bool = False,
    card: Facts | None = None,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes a SavedModel of a classifier or an encoder with its tokenizer.

    The signatures of a `TextClassifier`:

    - `serving_default`: `text`, strings `(batch,)`. It returns `label`, strings, and
      `score`, float32, both `(batch,)`; `classes`, strings, and `probabilities`,
      float32, of all classes, both `(batch, classes)`; and `truncated`, bool
      `(batch,)`, whether the end of the text is left out. With `multi_label`, `label`
      and `score` are `(batch, classes)`, `""` and 0 for the classes with a probability
      below 0.5.
    - `pairs`: `text` and `second_text`, strings `(batch,)`. It returns the same.

    Those of a `TokenClassifier`:

    - `serving_default`: `text`, strings `(batch,)`, whose words are separated by white
      space. It returns `word` and `tag`, strings, and `score`, float32, all
      `(batch, words)`, padded with `""` and 0; `probabilities`, float32
      `(batch, words, classes)`; and `truncated`, bool `(batch,)`. Words without a tag
      are not part of `word` if the sentence is too long.
    - `words`: `words`, strings `(batch, words)`, padded with `""` at the end. It
      returns the same.

    Those of a `TextEncoder`:

    - `serving_default`: `text`, strings `(batch,)`. It returns `vector`, float32
      `(batch, hidden_dim)`, and `truncated`, bool `(batch,)`.

    All of them have `tokens`: the inputs of the model, int32 `(batch, length)`. It
    returns `probabilities` or `vector`. A model without a tokenizer, or with one that
    runs on the host, has this signature alone, as `serving_default`.

    Nothing is compiled at the first request: sizes of batches and lengths are dynamic.
    The SavedModel is loaded in a child process and checked before it is moved to
    `filepath`: its numbers must equal those of the model up to 1e-4. The folder also
    contains a model card, `README.md`, and `keras_transformer.json`, with which the
    commands load the folder. On JAX and PyTorch, a child process with the TensorFlow
    backend writes the SavedModel.

    Args:
        model: a `TextClassifier`, a `TokenClassifier` or a `TextEncoder`.
        filepath: folder to write, such as `saved_models/films/1`. It must not exist or
            be empty.
        pooling: how an encoder pools, as in `TextEncoder.embed`; `None` = `"mean"`.
        normalize: bool, whether the vectors of an encoder are divided by their length.
        card: additional sections of the model card, as in `export_saved_model`.
        check_texts: texts for the check. `None` = texts, or rows of token ids, created
            from the vocabulary.

    Raises:
        ValueError: if an argument does not suit the model.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if the SavedModel does not compute the numbers of the model, or a
            child process fails.
        FloatingPointError: if the weights or outputs of the model are not finite.

    Example:

    ```python
    classifier.export("saved_models/films/1")
    serve = tf.saved_model.load("saved_models/films/1").signatures["serving_default"]
    serve(text=tf.constant(["a great film"]))["label"]
    ```
    """
    output = checked_output(model, pooling, normalize)
    check_weights(model)
    tokenizer = model.tokenizer
    texts = None
    if tokenizer is not None:
        texts = [*(check_texts or texts_of_vocabulary(tokenizer, model.max_length))]
    inputs = sample_inputs(output, texts)
    with new_folder(filepath) as folder:
        options = {"pooling": output.pooling, "normalize": normalize}
        write_with_tensorflow(_write, model, folder, **options)
        given: dict[str, list[object]] = {n: x.tolist() for n, x in inputs.items()}
        if tokenizer is not None and tokenizer.in_graph:
            given = {"text": [*(texts or ())]}
        called = call_signature(folder, "serving_default", given)
        found = np.array(called[output.name], "float32")
        check_outputs("The SavedModel", output, inputs, found)
        output.description().write(folder)
        tables: dict[str, Facts] = {
            "Model": _facts(output),
            "Signatures": describe_signatures(folder),
            "Created with": package_versions(),
        }
        usage = _usage(pathlib.Path(filepath), given)
        write_card(folder, model_name(filepath), usage, tables, card or {})


def _write(
    model: AnyEncoder, folder: pathlib.Path, pooling: str, normalize: bool
) -> None:
    functions = EncoderFunctions(Output(model, pooling, normalize))
    tf.saved_model.save(functions, str(folder), signatures=functions.functions)
    compact(folder)


class EncoderFunctions(tf.Module):
    """Tokenizer and model as TensorFlow functions of strings and of token ids."""

    def __init__(self, output: Output):
        super().__init__()
        model = output.model
        self._output = lambda: output  # TensorFlow does not track what it contains.
        self.weights = [weight.value for weight in model.weights]
        self._vocabulary_size = encoder_of(model).vocabulary_size
        names = [] if isinstance(model, TextEncoder) else model.class_names
        self._class_names = tf.constant([*names], tf.string)
        specs = [input_spec(name, tf.int32, rank=2) for name in output.input_names]
        functions = {"tokens": traced(self._tokens, *specs)}
        tokenizer = model.tokenizer
        if tokenizer is None or not tokenizer.in_graph:
            functions = {"serving_default": functions["tokens"]}
        else:
            self.tokenizer = tokenizer
            functions |= self._text_functions(model)
        self.functions = functions

    def _text_functions(
        self, model: AnyEncoder
    ) -> dict[str, tf.types.experimental.PolymorphicFunction]:
        text, second = input_spec("text"), input_spec("second_text")
        if isinstance(model, TokenClassifier):
            return {
                "serving_default": traced(self._tag_texts, text),
                "words": traced(self._tag_words, input_spec("words", rank=2)),
            }
        if isinstance(model, TextClassifier):
            return {
                "serving_default": traced(self._classify, text),
                "pairs": traced(self._classify, text, second),
            }
        return {"serving_default": traced(self._embed, text)}

    def _tokens(self, token_ids: tf.Tensor, others: tf.Tensor | None = None) -> Outputs:
        output, size = self._output(), self._vocabulary_size
        message = f"`token_ids` must be from 0 to {size - 1}; received"
        is_known = tf.reduce_all((token_ids >= 0) & (token_ids < size))
        values = (asserted(token_ids, is_known, message, token_ids), others)
        inputs = dict(zip(output.input_names, values, strict=False))
        return {output.name: tf.cast(output.compute(inputs), tf.float32)}

    def _classify(
        self, text: tf.Tensor, second_text: tf.Tensor | None = None
    ) -> Outputs:
        encoded = self._encode(text, second_text)
        probabilities = self._compute(encoded)
        classes = tf.broadcast_to(self._class_names, tf.shape(probabilities))
        best = tf.argmax(probabilities, axis=1, output_type=tf.int32)
        label = tf.gather(self._class_names, best)
        score = tf.reduce_max(probabilities, axis=1)
        if self._output().model.multi_label:
            is_label = probabilities >= THRESHOLD
            label = tf.where(is_label, classes, "")
            score = tf.where(is_label, probabilities, 0.0)
        return {
            "label": label,
            "score": score,
            "classes": classes,
            "probabilities": probabilities,
            "truncated": encoded.is_cut,
        }

    def _embed(self, text: tf.Tensor) -> Outputs:
        encoded = self._encode(text, None)
        return {"vector": self._compute(encoded), "truncated": encoded.is_cut}

    def _encode(self, text: tf.Tensor, second: tf.Tensor | None) -> EncodedTexts:
        encoder = encoder_of(self._output().model)
        return encode_texts(
            self.tokenizer,
            text,
            second,
            encoder.max_length,
            encoder.pair_separators,
            encoder.second_segment,
        )

    def _compute(self, encoded: EncodedTexts) -> tf.Tensor:
        output = self._output()
        inputs = {
            "token_ids": encoded.token_ids.to_tensor(self.tokenizer.pad_token_id),
            "segment_ids": encoded.segment_ids.to_tensor(0),
        }
        return output.compute({name: inputs[name] for name in output.input_names})

    def _tag_texts(self, text: tf.Tensor) -> Outputs:
        return self._tag(white_space_words(text))

    def _tag_words(self, words: tf.Tensor) -> Outputs:
        return self._tag(tf.RaggedTensor.from_tensor(words, padding=""))

    def _tag(self, words: tf.RaggedTensor) -> Outputs:
        output = self._output()
        encoded: EncodedWords = encode_words(
            self.tokenizer, words, output.model.max_length
        )
        first_pieces = encoded.first_pieces.to_tensor(0)
        inputs = {
            "token_ids": encoded.token_ids.to_tensor(self.tokenizer.pad_token_id),
            "first_pieces": first_pieces,
        }
        is_word, own = first_pieces > 0, words.to_tensor("")
        found = tf.where(is_word[:, :, None], output.compute(inputs), 0.0)
        best = tf.argmax(found, axis=2, output_type=tf.int32)
        return {
            "word": tf.where(is_word, own[:, : tf.shape(is_word)[1]], ""),
            "tag": tf.where(is_word, tf.gather(self._class_names, best), ""),
            "score": tf.reduce_max(found, axis=2),
            "probabilities": found,
            "truncated": encoded.is_cut,
        }


def _facts(output: Output) -> Facts:
    facts = describe_model(output.model)
    if isinstance(output.model, TextEncoder):
        return {**facts, "pooling": output.pooling, "normalize": output.normalize}
    return facts


def _usage(folder: pathlib.Path, inputs: Mapping[str, Sequence[object]]) -> str:
    is_numbered = is_version(folder.name)
    path = f"{model_name(folder)}/{folder.name}" if is_numbered else folder.name
    arguments = ", ".join(
        f"{name}=tf.constant([{json.dumps(values[0], ensure_ascii=False)}])"
        for name, values in inputs.items()
    )
    return _USAGE.format(folder=path, arguments=arguments)

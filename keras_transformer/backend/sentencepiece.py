"""SentencePiece models of tensorflow-text that outlive TensorFlow's kernel cache."""

import hashlib
from typing import Any


def keep_model(tokenizer: Any, proto: bytes) -> None:
    """Makes the model of a tokenizer a named resource.

    tensorflow-text leaves the model to the cached kernel of an operation, so
    `tf.random.set_seed` and `keras.utils.clear_session` would destroy it
    ([tensorflow/text, issue 570](https://github.com/tensorflow/text/issues/570)). Its
    public API cannot name the resource. If tensorflow-text changes its private names,
    the tokenizer keeps the resource that tensorflow-text has created.

    Args:
        tokenizer: a `tensorflow_text.SentencepieceTokenizer`.
        proto: the serialised SentencePiece model.
    """
    import tensorflow as tf

    try:
        from tensorflow_text.python.ops import sentencepiece_tokenizer

        sentencepiece_op = (
            sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op
        )
    except (AttributeError, ImportError):
        return
    if not hasattr(tokenizer, "_model_resource"):
        return

    class NamedModel(tf.saved_model.experimental.TrackableResource):
        """The model, under a name made from its content."""

        def __init__(self) -> None:
            super().__init__()
            _ = self.resource_handle  # Created here, not in the first graph.

        def _create_resource(self) -> Any:
            name = hashlib.sha256(proto).hexdigest()
            return sentencepiece_op(model=proto, shared_name=name)

    tokenizer._model_resource = NamedModel()

"""Internals of SentencePiece: models that outlive TensorFlow's cache, and its rules."""

import array
import hashlib
import struct
import sys
import warnings
from collections.abc import Mapping
from typing import Any


def keep_model(tokenizer: Any, proto: bytes) -> None:
    """Makes the serialized model of a tokenizer, `proto`, a named resource.

    tensorflow-text leaves the model to the cached kernel of an operation, so
    `tf.random.set_seed` and `keras.utils.clear_session` would destroy it
    ([tensorflow/text, issue 570](https://github.com/tensorflow/text/issues/570)). Its
    public API cannot name the resource; without the private names, nothing changes.
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

        def _create_resource(self) -> object:
            name = hashlib.sha256(proto).hexdigest()
            return sentencepiece_op(model=proto, shared_name=name)

    tokenizer._model_resource = NamedModel()


def keep_keras_hub_model(tokenizer: Any) -> None:
    """Does the same for a tokenizer of KerasHub, if it has a SentencePiece model."""
    model = getattr(tokenizer, "_sentence_piece", None)
    if model is not None:
        keep_model(model, tokenizer.proto)


def edited_normalization(rule: str, edits: Mapping[str, str]) -> bytes:
    """Returns `precompiled_charsmap` of a normalization with further replacements.

    SentencePiece compiles rules in five seconds from a table of 225,000 lines that its
    Python package does not have. This function adds the edits to the compiled rules;
    rules of an unknown format stay as they are.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=rule)
    proto = normalizer.serialized_model_proto()
    model = sentencepiece_model_pb2.ModelProto.FromString(proto)  # type: ignore[attr-defined]
    spec = model.normalizer_spec
    spec.add_dummy_prefix = spec.escape_whitespaces = False
    spec.remove_extra_whitespaces = False
    original: bytes = spec.precompiled_charsmap

    def normalize(charsmap: bytes) -> list[str]:
        spec.precompiled_charsmap = charsmap
        changed = sentencepiece.SentencePieceNormalizer(
            model_proto=model.SerializeToString()
        )
        return [changed.normalize(f"a{text}b")[1:-1] for text in edits]

    before = zip(edits.items(), normalize(original), strict=True)
    needed = {text: new for (text, new), old in before if new != old}
    try:
        edited = _edit_charsmap(original, needed)
        if normalize(edited) == [*edits.values()]:
            return edited
    except (IndexError, OverflowError, RuntimeError, ValueError, struct.error):
        pass
    warnings.warn(
        f"This version of sentencepiece has another format of its rule {rule!r}. The "
        "rule is used unchanged: some invisible characters are kept, others become "
        "spaces.",
        stacklevel=4,
    )
    return original


def _edit_charsmap(charsmap: bytes, edits: Mapping[str, str]) -> bytes:
    """Sets the replacements of characters in compiled rules."""
    # The rules are the size of a trie in bytes, the trie (a double array of
    # https://github.com/s-yata/darts-clone over the bytes of UTF-8), and the
    # replacements, each followed by a zero byte. The values of the trie are their
    # positions.
    (size,) = struct.unpack_from("<I", charsmap)
    units = array.array("I", charsmap[4 : 4 + size])
    if sys.byteorder == "big":
        units.byteswap()
    replacements = bytearray(charsmap[4 + size :])
    trie = _DoubleArray(units)
    for text, replacement in edits.items():
        trie.insert(text.encode(), len(replacements))
        replacements += replacement.encode() + b"\0"
    if sys.byteorder == "big":
        units.byteswap()
    content = units.tobytes()
    return struct.pack("<I", len(content)) + content + replacements


class _DoubleArray:
    """A trie of darts-clone to which keys are added."""

    # A node is a unit of 32 bits. Bits 0 to 7 are the byte that leads to it, bit 8 is
    # set if it has a value, and the others are an offset: the child of node n by byte b
    # is at `n ^ offset ^ b`, the value of n at `n ^ offset`. A unit with bit 31 is a
    # value. Nodes with equal children share them, so the children of a node are copied
    # to a new block of 256 units before they change.

    def __init__(self, units: "array.array[int]") -> None:
        self._units = units
        self._units.extend([0] * (-len(units) % 256))
        self._empty_block = self._new_block()  # of new nodes, until they have children
        self._copied: set[int] = set()  # nodes with a block of their own
        self._values: list[int] = []  # free places of values

    def insert(self, key: bytes, value: int) -> None:
        """Sets the value of a key."""
        node = 0
        for byte in key:
            base = self._copy_children(node)
            node = base ^ byte
            if not self._is_child(node, byte):
                self._units[node] = byte
                self._set_base(node, self._empty_block)
        self._units[self._place_of_value(node)] = value | 1 << 31
        self._units[node] |= 1 << 8

    def _base(self, node: int) -> int:
        unit = self._units[node]
        return node ^ (unit >> 10) << ((unit & 1 << 9) >> 6)

    def _is_child(self, node: int, byte: int) -> bool:
        inside = node < len(self._units)
        return inside and self._units[node] & (1 << 31 | 0xFF) == byte

    def _children(self, node: int) -> dict[int, int]:
        base = self._base(node)
        places = ((byte, base ^ byte) for byte in range(1, 256))
        return {byte: child for byte, child in places if self._is_child(child, byte)}

    def _copy_children(self, node: int) -> int:
        """Gives a node a separate block, and returns the start of the block."""
        if node in self._copied:
            return self._base(node)
        children = self._children(node)
        old, new = self._base(node), self._new_block()
        if self._units[node] >> 8 & 1:
            self._units[new] = self._units[old]
        for byte, child in children.items():
            self._units[new ^ byte] = self._units[child]
            self._set_base(new ^ byte, self._base(child))
        self._set_base(node, new)
        self._copied.add(node)
        return new

    def _place_of_value(self, node: int) -> int:
        if node in self._copied or self._children(node):
            return self._copy_children(node)
        if not self._values:  # a block of values alone, which are no children
            start = self._new_block()
            self._values = list(range(start, start + 256))
        place = self._values.pop()
        self._set_base(node, place)
        return place

    def _new_block(self) -> int:
        start = len(self._units)
        self._units.extend([0] * 256)
        return start

    def _set_base(self, node: int, base: int) -> None:
        offset = node ^ base
        if offset >= 1 << 21:
            raise OverflowError("the trie is too large")
        self._units[node] = self._units[node] & 0x1FF | offset << 10

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.export.saved_model.compact_graph import compact
from keras_transformer.text import SentencePieceTokenizer

pytestmark = pytest.mark.once

WORDS = tf.TensorSpec([None], tf.string, "words")


class Counter(tf.Module):
    """Tokens of a text times a weight, in a loop, with a check and a side effect."""

    def __init__(self):
        super().__init__()
        lines = ["the cat sat on the mat", "the dog sat on the log"]
        self.tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=30)
        self.weight = tf.Variable(np.arange(30, dtype="float32"))
        self.calls = tf.Variable(0)

    @tf.function(input_signature=[WORDS])
    def total(self, words):
        token_ids = self.tokenizer.tokenize(words).to_tensor()
        self.calls.assign_add(1)
        checked = tf.debugging.assert_greater(tf.size(token_ids), 0, "nothing to count")
        with tf.control_dependencies([checked]):
            total = tf.zeros(tf.shape(token_ids)[0])
        with tf.name_scope("a_long_name_for_what_comes"):
            step = tf.shape(token_ids)[0] * 0 + 1
        same = tf.shape(token_ids)[0] * 0 + 1
        _, total = tf.while_loop(
            lambda i, _: i < tf.shape(token_ids)[1],
            lambda i, x: (i + step, x + tf.gather(self.weight, token_ids[:, i])),
            [same - 1, total],
        )
        return {"total": total, "calls": self.calls.read_value()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders = [tmp_path_factory.mktemp("counter") / name for name in ("as_is", "small")]
    counter = Counter()
    for folder in folders:
        tf.saved_model.save(counter, str(folder), signatures={"total": counter.total})
    compact(folders[1])
    return folders


TEXTS = ["the cat", "a dog on the mat", ""]


def test_the_compact_graph_gives_the_same_outputs(folders):
    as_is, small = (tf.saved_model.load(str(f)).signatures["total"] for f in folders)
    assert small.structured_input_signature == as_is.structured_input_signature
    for call in (1, 2):
        wanted, found = (serve(words=tf.constant(TEXTS)) for serve in (as_is, small))
        np.testing.assert_array_equal(found["total"], wanted["total"])
        assert found["calls"] == call and found["total"][0] > 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing to count"):
        small(words=tf.constant([""]))


def test_a_session_as_in_a_server_gives_the_same_outputs(folders):
    outputs = []
    for folder in folders:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
            signature = loaded.signature_def["total"]
            total = signature.outputs["total"].name
            words = signature.inputs["words"].name
            outputs += [session.run(total, {words: TEXTS}) for _ in range(2)]
    assert outputs[0][0] > 0
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])


def test_the_graph_is_small_and_has_one_tokenizer(folders):
    as_is, small = ((f / "saved_model.pb").read_bytes() for f in folders)
    proto = Counter().tokenizer.proto
    assert as_is.count(proto) == 2 and small.count(proto) == 1
    sizes = len(small) - len(proto), len(as_is) - 2 * len(proto)
    assert sizes[0] < 2 / 3 * sizes[1]
    assert b"a_long_name" in as_is and b"a_long_name" not in small

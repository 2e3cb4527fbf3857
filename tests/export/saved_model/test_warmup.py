import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import BeamSearch, Seq2Seq
from keras_transformer.export.saved_model.warmup import (
    FILE,
    check_warmup,
    warmup_requests,
    write_warmup,
)
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once("torch")

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdefg"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}

# Counts the modules that XLA has compiled after each batch of requests.
REPLAY = """
import json, os, sys
import tensorflow as tf
import tensorflow_text
from keras_transformer.export.saved_model.warmup import warmup_requests
folder, dump, texts = json.load(sys.stdin)
signatures = tf.saved_model.load(folder).signatures
def count():
    names = os.listdir(dump) if os.path.isdir(dump) else []
    return sum(name.endswith("before_optimizations.txt") for name in names)
for signature, inputs in warmup_requests(folder):
    signatures[signature](**{key: tf.constant(x) for key, x in inputs.items()})
counts = [count()]
for batch in texts:
    signatures["serving_default"](text=tf.constant(batch))
    counts.append(count())
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def model():
    return Seq2Seq(**SIZES, source_tokenizer=LETTERS, max_source_length=22)


def test_the_requests_have_the_given_shapes(model, tmp_path):
    write_warmup(model, tmp_path, [(1, 16), (3, 19), (1, 32), (1, 48)])
    (first, text), *others = warmup_requests(tmp_path)
    assert first == "serving_default" and text["text"].shape == (1,)
    assert [name for name, _ in others] == ["tokens"] * 3
    arrays = [inputs["token_ids"] for _, inputs in others]
    assert [array.shape for array in arrays] == [(1, 16), (3, 19), (1, 22)]
    for array in arrays:
        assert array.dtype == np.int32
        assert (array[:, -1] == 3).all() and (array[:, :-1] > 3).all()


def test_tensorflow_serving_reads_the_requests(model, tmp_path):
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.apis import prediction_log_pb2

    write_warmup(model, tmp_path, [(2, 5)])
    records = tf.data.TFRecordDataset(str(tmp_path / FILE)).as_numpy_iterator()
    logs = [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    requests = [log.predict_log.request for log in logs]
    names = [request.model_spec.signature_name for request in requests]
    assert names == ["serving_default", "tokens"]
    found = {
        key: tf.make_ndarray(tensor)
        for request in requests
        for key, tensor in request.inputs.items()
    }
    for _, inputs in warmup_requests(tmp_path):
        for key, value in inputs.items():
            np.testing.assert_array_equal(found.pop(key), value)
    assert not found


def test_without_shapes_there_is_no_file(model, tmp_path):
    write_warmup(model, tmp_path, [])
    assert not list(tmp_path.iterdir()) and not list(warmup_requests(tmp_path))


@pytest.mark.parametrize("shape", [(0, 4), (1, 0), (1, 2, 3)])
def test_impossible_shapes(model, tmp_path, shape):
    with pytest.raises(ValueError, match="`warmup` must hold pairs of a number"):
        check_warmup([(1, 16), shape])
    with pytest.raises(ValueError, match="`warmup` must hold pairs"):
        model.export(tmp_path / "1", warmup=[shape])


@pytest.mark.slow
@pytest.mark.once
def test_warm_shapes_are_not_compiled_again(model, tmp_path):
    folder, dump = tmp_path / "1", tmp_path / "dump"
    model.export(folder, BeamSearch(2), max_length=3, warmup=[(1, 16), (4, 22)])
    texts = [["abc"], ["g" * 15], ["a", "b" * 21, "c"], ["a" * 21] * 5]
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
    process = subprocess.run(
        [sys.executable, "-c", REPLAY],
        input=json.dumps([str(folder), str(dump), texts]),
        env={**os.environ, "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}"},
        capture_output=True,
        text=True,
    )
    warm, *counts = json.loads(process.stdout.splitlines()[-1])
    assert warm > 0 and counts == [warm, warm, warm, warm + 1], process.stderr

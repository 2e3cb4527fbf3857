"""Ids and texts are those of the package `tokenizers`, for each kind of tokenizer."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tokenizers as hugging_face
from hugging_face_tokenizers import KINDS, LINES, TOKENS, random_texts, rules

from keras_transformer import GreedySearch, HuggingFaceTokenizer, Seq2Seq, Tokenizer
from keras_transformer.text.pipeline.normalizers import normalizer
from keras_transformer.text.prompt_tokenizer import PromptTokenizer
from keras_transformer_runtime.tokenizers import read_tokenizer

pytestmark = pytest.mark.once
ROOT = pathlib.Path(__file__).parents[2]
TEXTS = random_texts(300)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def theirs(kind):
    return KINDS[kind]()


def ours(theirs, kind):
    ids = [theirs.token_to_id(name) if name else None for name in TOKENS[kind]]
    return HuggingFaceTokenizer(theirs.to_str(), *ids)


@pytest.fixture(scope="module")
def tokenizer(theirs, kind):
    return ours(theirs, kind)


def their_ids(theirs, texts):
    return [each.ids for each in theirs.encode_batch(texts, add_special_tokens=False)]


def test_ids_are_equal(theirs, tokenizer):
    assert tokenizer.in_graph
    expected = their_ids(theirs, TEXTS)
    assert len({id for row in expected for id in row}) > 100
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(7).map(tokenizer.tokenize)
    assert [row for batch in data for row in batch.to_list()] == expected


def test_batches_without_words(tokenizer):
    in_graph = tf.function(
        lambda texts: tokenizer.detokenize(tokenizer.tokenize(texts)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    for texts in ([], [""], ["", ""]):
        rows = tokenizer.tokenize(tf.constant(texts, tf.string))
        assert rows.to_list() == [[]] * len(texts)
        found = in_graph(tf.constant(texts, tf.string)).numpy().tolist()
        assert found == [b""] * len(texts)


def test_texts_are_equal(theirs, tokenizer):
    rows = their_ids(theirs, TEXTS)
    expected = theirs.decode_batch(rows)
    texts = tokenizer.detokenize(tf.ragged.constant(rows, tf.int32)).numpy()
    assert [text.decode() for text in texts] == expected


def test_the_texts_of_tokens_join_to_those_of_outputs(tokenizer):
    parts = tokenizer.token_texts()
    rows = tokenizer.tokenize(LINES[:3])
    joined = [b"".join(parts[id] for id in row).strip() for row in rows.to_list()]
    # Without the spaces that WordPiece removes in front of punctuation.
    assert joined == tokenizer.detokenize(rows).numpy().tolist()


def test_plain_python_is_equal(tokenizer, tmp_path):
    content = {"class_name": "HuggingFaceTokenizer", "config": tokenizer.get_config()}
    plain = read_tokenizer(content, tmp_path)
    texts = [*TEXTS, "a</s>b<|endoftext|>[SEP]"]
    expected = tokenizer.tokenize(texts).to_list()
    assert [plain.encode(text) for text in texts] == expected
    rows = tf.ragged.constant(expected, tf.int32)
    found = [text.decode() for text in tokenizer.detokenize(rows).numpy()]
    assert [plain.decode(row) for row in expected] == found
    assert plain.tokens == tuple(tokenizer.get_vocabulary())


def test_text_is_never_converted_to_padding_start_or_end(kind, tokenizer):
    for name in filter(None, TOKENS[kind]):
        row = tokenizer.tokenize([f"a{name}b"]).to_list()[0]
        unknown = tokenizer.unknown_token_id
        framing = (tokenizer.pad_token_id, tokenizer.start_token_id)
        assert unknown in row
        assert not {*framing, tokenizer.end_token_id} & {*row}


def test_saving(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    copy = Tokenizer.load(tmp_path / "tokenizer.json")
    assert copy.get_config() == tokenizer.get_config()
    assert (
        copy.tokenize(TEXTS[:20]).to_list() == tokenizer.tokenize(TEXTS[:20]).to_list()
    )
    config = json.dumps(keras.saving.serialize_keras_object(tokenizer))
    other = keras.saving.deserialize_keras_object(json.loads(config))
    assert other.get_config() == tokenizer.get_config()


@pytest.mark.parametrize("name", ["nfkc", "nmt_nfkc", "nmt_nfkc_cf"])
def test_compiled_rules(name):
    """Every character, and clusters of characters with marks."""
    marks = ["\u0301", "\u0323", "\u093c", "\u3099", "\u200d", "\uff9e", "\U000e0100"]
    rng = np.random.default_rng(0)
    clusters = [
        "".join(base + "".join(rng.choice(marks, rng.integers(4))) for base in bases)
        for bases in rng.choice([*"aÅ①猫カｶがक가ᄀ\u0600\r\n\t\xad\x00"], [300, 8])
    ]
    texts = [chr(c) for c in range(1, 0x3134F) if not 0xD800 <= c < 0xE000] + clusters
    theirs = rules(name)
    found = normalizer(json.loads(theirs.__getstate__()))(tf.constant(texts)).numpy()
    expected = [theirs.normalize_str(text) for text in texts]
    assert [text.decode() for text in found] == expected


def host_tokenizer():
    """A tokenizer whose pre-tokenizer has no form in TensorFlow."""
    theirs = KINDS["gpt2"]()
    theirs.pre_tokenizer = hugging_face.pre_tokenizers.Sequence(
        [hugging_face.pre_tokenizers.UnicodeScripts(), theirs.pre_tokenizer]
    )
    return theirs


def test_a_tokenizer_on_the_host(tmp_path):
    theirs = host_tokenizer()
    tokenizer = ours(theirs, "gpt2")
    assert not tokenizer.in_graph
    assert tokenizer.describe()["due_to"] == "the pre-tokenizer UnicodeScripts"
    assert not PromptTokenizer(tokenizer).in_graph
    expected = their_ids(theirs, TEXTS)
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(50).map(tokenizer.tokenize)
    assert [row for batch in data for row in batch.to_list()] == expected
    rows = tf.ragged.constant(expected, tf.int32)
    texts = [text.decode() for text in tokenizer.detokenize(rows).numpy()]
    assert texts == theirs.decode_batch(expected)
    assert tokenizer.tokenize([]).to_list() == []
    assert tokenizer.detokenize(tf.ragged.constant([], tf.int32, 1)).shape == [0]
    tokenizer.save(tmp_path / "tokenizer.json")
    copy = Tokenizer.load(tmp_path / "tokenizer.json")
    assert copy.tokenize(TEXTS).to_list() == expected


SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}


@pytest.mark.slow
def test_a_saved_model_takes_token_ids(tmp_path):
    tokenizer = ours(host_tokenizer(), "gpt2")
    model = Seq2Seq(**SIZES, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    message = "takes and returns token ids, .* `source_tokenizer=<HuggingFaceT"
    with pytest.warns(UserWarning, match=message):
        model.export(tmp_path / "1", GreedySearch(), check_texts=TEXTS[:4])
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    rows = tokenizer.tokenize(TEXTS[:4], add_end=True).to_tensor(model.pad_token_id)
    outputs = serve(token_ids=rows)
    texts = tokenizer.detokenize(outputs["token_ids"][:, 0]).numpy()
    expected = model.generate(TEXTS[:4], GreedySearch())
    assert [text.decode() for text in texts] == expected


@pytest.mark.parametrize(
    "content", ["{}", "[1]", '{"model": {"vocab": {"a": 99999}}, "added_tokens": []}']
)
def test_a_content_that_is_refused(content):
    with pytest.raises(ValueError, match="must be"):
        HuggingFaceTokenizer(content)


def test_ids_that_are_refused():
    content = json.loads(KINDS["bert"]().to_str())
    content["model"]["vocab"]["more"] = content["model"]["vocab"]["the"]
    with pytest.raises(ValueError, match="must have its own id.*'the' and 'more'"):
        HuggingFaceTokenizer(json.dumps(content))
    with pytest.raises(ValueError, match="The id of `</s>` must be from 0 to"):
        HuggingFaceTokenizer(KINDS["bert"]().to_str(), end_token_id=10**6)


@pytest.mark.slow
def test_saved_models_of_each_kind(kind, tokenizer, tmp_path):
    """A process that has only TensorFlow and tensorflow-text returns the same."""

    class Echo(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            rows = self.tokenizer.tokenize(texts, add_end=True)
            return rows.to_tensor(-1), self.tokenizer.detokenize(rows)

    tf.saved_model.save(Echo(), str(tmp_path / kind))
    code = f"""
import sys, json, tensorflow as tf, tensorflow_text
ids, texts = tf.saved_model.load(sys.argv[1]).serve({TEXTS!r})
print(json.dumps([ids.numpy().tolist(), [t.decode() for t in texts.numpy()]]))
assert "keras_transformer" not in sys.modules and "tokenizers" not in sys.modules
"""
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / kind)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    rows = tokenizer.tokenize(TEXTS, add_end=True)
    expected = [text.decode() for text in tokenizer.detokenize(rows).numpy()]
    found = json.loads(process.stdout.splitlines()[-1])
    assert found == [rows.to_tensor(-1).numpy().tolist(), expected]

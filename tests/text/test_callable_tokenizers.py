"""Tokenizers as layers of Keras."""

import copy
import io
import json
import pickle
import zipfile

import h5py
import keras
import keras_nlp
import numpy as np
import pytest
import tensorflow as tf
import tokenizers as hugging_face

import keras_transformer as kt
from keras_transformer.text import (
    ByteTokenizer,
    CharacterTokenizer,
    FramedTokenizer,
    HuggingFaceTokenizer,
    KerasHubTokenizer,
    MarianTokenizer,
    PromptTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)

LINES = ["the cat sat", "a good film", "a bad film", "good cats sat"]
TEXTS = ["the good cat", "a film", ""]
BACKEND = keras.backend.backend()
KINDS = ["sentencepiece", "character", "word", "byte", "marian", "keras_hub"]
KINDS += ["hugging_face", "host", "framed", "prompt"]


def hugging_face_tokenizer(on_host):
    own = hugging_face.Tokenizer(hugging_face.models.BPE(unk_token="[UNK]"))
    own.pre_tokenizer = hugging_face.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = hugging_face.decoders.ByteLevel()
    if on_host:  # a part that TensorFlow does not compute
        own.normalizer = hugging_face.normalizers.Nmt()
    trainer = hugging_face.trainers.BpeTrainer(special_tokens=["[UNK]", "[END]"])
    own.train_from_iterator(LINES, trainer)
    return HuggingFaceTokenizer(
        own.to_str(), unknown_token_id=0, start_token_id=1, end_token_id=1
    )


@pytest.fixture(scope="module")
def all_kinds():
    pieces = SentencePieceTokenizer.train(lines=LINES, vocabulary_size=29)
    words = WordTokenizer.train(lines=LINES)
    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "good", "cat", "##s"]
    bert = keras_nlp.tokenizers.WordPieceTokenizer(bert, lowercase=True)
    found = [
        pieces,
        CharacterTokenizer.train(lines=LINES),
        words,
        ByteTokenizer(),
        MarianTokenizer(pieces.proto, [*pieces.get_vocabulary()[1:], "<pad>"]),
        KerasHubTokenizer(bert, pad_token_id=0, start_token_id=2, end_token_id=3),
        hugging_face_tokenizer(on_host=False),
        hugging_face_tokenizer(on_host=True),
        FramedTokenizer(words, [5], [6, 4]),
        PromptTokenizer(words, add_start_token=True),
    ]
    return dict(zip(KINDS, found, strict=True))


@pytest.fixture(params=KINDS)
def tokenizer(request, all_kinds):
    return all_kinds[request.param]


def padded(rows, pad_token_id, length=None):
    length = length or max(map(len, rows))
    return [[*row, *[pad_token_id] * (length - len(row))] for row in rows]


def to_list(ids):
    return keras.ops.convert_to_numpy(ids).tolist()


# Calls.


@pytest.mark.parametrize("framed", [False, True])
def test_ids_are_the_padded_rows(tokenizer, framed):
    options = {"add_start": framed, "add_end": framed}
    rows = tokenizer.tokenize(TEXTS, **options).to_list()
    ids = tokenizer(TEXTS, **options)
    assert keras.ops.is_tensor(ids)
    assert keras.backend.standardize_dtype(ids.dtype) == "int32"
    assert to_list(ids) == padded(rows, tokenizer.pad_token_id)


def test_kinds_of_texts():
    tokenizer = ByteTokenizer()
    expected = [[101, 102], [103, 0]]
    for texts in (
        ["ab", "c"],
        ("ab", "c"),
        [b"ab", b"c"],
        np.array(["ab", "c"]),
        np.array(["ab", "c"], object),
        tf.constant(["ab", "c"]),
    ):
        assert to_list(tokenizer(texts)) == expected
    for text in ("ab", b"ab", np.array("ab"), tf.constant("ab")):
        assert to_list(tokenizer(text)) == expected[0]
        assert to_list(tokenizer(text, sequence_length=3)) == [101, 102, 0]
    assert to_list(tokenizer("")) == to_list(tokenizer([])) == []


@pytest.mark.parametrize("add_start", [False, True])
@pytest.mark.parametrize("add_end", [False, True])
def test_sequence_length_is_that_of_keras_hub(add_start, add_end):
    tokenizer, texts = ByteTokenizer(), ["abcdef", "abc", ""]
    for length in (3, 5, 11):
        pack = keras_nlp.layers.StartEndPacker(
            length, start_value=2, end_value=3, pad_value=0
        )
        rows = tf.ragged.constant([[*map(ord, text)] for text in texts]) + 4
        expected = pack(rows, add_start_value=add_start, add_end_value=add_end)
        options = {"add_start": add_start, "add_end": add_end}
        ids = tokenizer(texts, sequence_length=length, **options)
        assert to_list(ids) == to_list(expected)


def test_truncation_keeps_the_tokens_around_a_text(all_kinds):
    framed, prompt = all_kinds["framed"], all_kinds["prompt"]
    first, second, _ = all_kinds["word"].tokenize(["the good cat"]).to_list()[0]
    ids = framed(["the good cat", ""], add_end=True, sequence_length=6)
    assert to_list(ids) == [[5, first, second, 3, 6, 4], [5, 3, 6, 4, 0, 0]]
    assert to_list(prompt(["the good cat"], sequence_length=2)) == [[2, first]]


def test_one_text_has_the_ids_of_its_row(tokenizer):
    (row,) = to_list(tokenizer([TEXTS[0]], add_end=True))
    assert to_list(tokenizer(TEXTS[0], add_end=True)) == row


# Pipelines of `tf.data`, with every backend.


def test_inside_a_data_pipeline(tokenizer):
    expected = padded(tokenizer.tokenize(TEXTS).to_list(), tokenizer.pad_token_id)
    data = tf.data.Dataset.from_tensors((TEXTS, [0, 1, 0]))
    ((ids, labels),) = data.map(lambda text, label: (tokenizer(text), label))
    assert (ids.dtype, ids.numpy().tolist()) == (tf.int32, expected)
    assert labels.numpy().tolist() == [0, 1, 0]
    length = len(expected[0])
    data = tf.data.Dataset.from_tensor_slices(TEXTS)
    single = data.map(lambda text: tokenizer(text, sequence_length=length))
    assert single.element_spec == tf.TensorSpec([length], tf.int32)
    assert [ids.tolist() for ids in single.as_numpy_iterator()] == expected


def test_padded_batches_of_single_texts():
    data = tf.data.Dataset.from_tensor_slices(["ab", "c"]).map(ByteTokenizer())
    (batch,) = data.padded_batch(2)
    assert batch.numpy().tolist() == [[101, 102], [103, 0]]


def classifier(vocabulary_size):
    keras.utils.set_random_seed(7)
    return [
        keras.layers.Embedding(vocabulary_size, 5, mask_zero=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(2, activation="softmax"),
    ]


def fitted(layers, data):
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    history = model.fit(data.repeat(5), verbose=0, shuffle=False)
    return model, history.history["loss"]


DATA = tf.data.Dataset.from_tensors((["good film", "a bad film"], [1, 0]))


def test_a_model_is_trained_on_a_mapped_dataset():
    tokenizer = ByteTokenizer()
    data = DATA.map(lambda text, label: (tokenizer(text), label))
    model, _ = fitted(classifier(tokenizer.vocabulary_size), data)
    found = keras.ops.convert_to_numpy(model(tokenizer(["a bad film", "good film"])))
    assert found.argmax(axis=1).tolist() == [0, 1]


# Models of strings, with TensorFlow.


@pytest.mark.once
def test_a_sequential_model_of_strings(tmp_path):
    tokenizer = SentencePieceTokenizer.train(lines=LINES, vocabulary_size=29)
    layers = classifier(tokenizer.vocabulary_size)
    model, losses = fitted([tokenizer, *layers], DATA)
    assert model.layers[0] is tokenizer
    assert not model.jit_compile
    ids = DATA.map(lambda text, label: (tokenizer(text), label))
    of_ids, expected = fitted(classifier(tokenizer.vocabulary_size), ids)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    texts = tf.constant(["a bad cat", "film"])
    probabilities = of_ids.predict(tokenizer(texts), verbose=0)
    for inputs in (texts, np.array(["a bad cat", "film"], object)):
        found = model.predict(inputs, verbose=0)
        np.testing.assert_allclose(found, probabilities, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].get_config() == tokenizer.get_config()
    np.testing.assert_array_equal(loaded.predict(texts, verbose=0), found)
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(served.serve(texts), found, rtol=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("kind", ["word", "host", "framed"])
def test_a_functional_model_of_strings(kind, all_kinds, tmp_path):
    tokenizer = all_kinds[kind]
    inputs = keras.Input((), dtype="string")
    ids = tokenizer(inputs, add_end=True, sequence_length=7)
    assert (ids.shape, ids.dtype) == ((None, 7), "int32")
    model = keras.Model(inputs, [ids, keras.layers.Flatten()(ids)])
    expected = tokenizer(TEXTS, add_end=True, sequence_length=7).numpy().tolist()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded, keras.models.clone_model(model)):
        assert each(tf.constant(TEXTS))[0].numpy().tolist() == expected
    for found in loaded.predict(tf.constant(TEXTS), verbose=0):
        assert found.tolist() == expected


@pytest.mark.once
@pytest.mark.parametrize("kind", ["framed", "keras_hub"])
def test_a_saved_model_contains_the_tokenizer(kind, all_kinds, tmp_path):
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, all_kinds[kind](inputs, add_end=True))
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    expected = all_kinds[kind](TEXTS, add_end=True)
    np.testing.assert_array_equal(served.serve(tf.constant(TEXTS)), expected)


@pytest.mark.once
def test_a_model_of_ours_behind_a_tokenizer():
    tokenizer = ByteTokenizer()
    encoder = kt.TextEncoder(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=2,
        tokenizer=tokenizer,
    )
    model = keras.Sequential([tokenizer, encoder])
    expected = encoder(tokenizer(LINES))
    np.testing.assert_allclose(
        model.predict(tf.constant(LINES), verbose=0), expected, atol=1e-5
    )


@pytest.mark.once
def test_a_saved_model_cannot_contain_a_tokenizer_on_the_host(all_kinds, tmp_path):
    for host in (all_kinds["host"], FramedTokenizer(all_kinds["host"], [1])):
        inputs = keras.Input((), dtype="string")
        model = keras.Model(inputs, host(inputs))
        with pytest.raises(ValueError, match="SavedModel must .* on the host"):
            model.export(tmp_path / "exported", verbose=False)


# Models that contain tokenizers.


def test_tokenizers_are_no_layers_of_a_model_of_ours(all_kinds, tmp_path):
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}
    own, hub = all_kinds["word"], all_kinds["keras_hub"]
    models = [
        kt.Seq2Seq(source_tokenizer=hub, target_tokenizer=own, **sizes),
        kt.CausalLM(tokenizer=own, **sizes),
        kt.TextEncoder(tokenizer=own, **sizes),
    ]
    assert models[0].source_tokenizer is hub
    assert models[0].target_tokenizer is models[1].tokenizer is own
    assert not hasattr(models[0], "tokenizer")
    for model in models:
        lines = []
        model.summary(print_fn=lines.append)
        assert "okenizer" not in "".join(lines)
        modules = [*model.modules()] if BACKEND == "torch" else []
        for layer in (*model.layers, *modules):
            assert not isinstance(layer, kt.Tokenizer)
        model.save(tmp_path / "model.keras")
        with zipfile.ZipFile(tmp_path / "model.keras") as file:
            names = file.namelist()
            weights = h5py.File(io.BytesIO(file.read("model.weights.h5")))
        assert not [name for name in names if "assets" in name]
        groups = []
        weights.visit(groups.append)
        assert groups and not [name for name in groups if "okenizer" in name]
    models[1].tokenizer = None
    assert models[1].tokenizer is None


@pytest.mark.parametrize("kind", ["word", "host", "framed", "keras_hub"])
def test_a_tokenizer_is_saved_and_copied_as_before(kind, all_kinds):
    tokenizer = all_kinds[kind]
    if BACKEND == "tensorflow":
        tokenizer(keras.Input((), dtype="string"))
    content = keras.saving.serialize_keras_object(tokenizer)
    assert content["config"] == tokenizer.get_config()
    assert content.keys() == {"module", "class_name", "config", "registered_name"}
    assert json.loads(json.dumps(content)) == content
    expected = to_list(tokenizer(TEXTS))
    for each in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert each.get_config() == tokenizer.get_config()
        assert to_list(each(TEXTS)) == expected
    assert tokenizer.weights == []
    assert isinstance(tokenizer, tf.Module)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it compiles no strings")
def test_a_model_with_a_tokenizer_as_attribute_is_compiled():
    class Own(keras.Model):
        def __init__(self, tokenizer):
            super().__init__()
            self.tokenizer = tokenizer

    models = [Own(None), Own(ByteTokenizer())]
    for model in models:
        model.compile("adam")
    assert models[0].jit_compile == models[1].jit_compile


def test_tables_are_tracked_with_every_backend(all_kinds, tmp_path):
    class Served(tf.Module):
        def __init__(self, tokenizer):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            return self.tokenizer(texts)

    tokenizer = all_kinds["word"]
    tf.saved_model.save(Served(tokenizer), str(tmp_path))
    found = tf.saved_model.load(str(tmp_path)).serve(tf.constant(TEXTS))
    assert found.numpy().tolist() == to_list(tokenizer(TEXTS))


# Errors.


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it has tensors of strings")
def test_a_model_of_another_backend():
    tokenizer = ByteTokenizer()
    message = f"not be a layer .* '{BACKEND}' .* Map the dataset .*dataset.map"
    with pytest.raises(ValueError, match=message):
        keras.Sequential([tokenizer, keras.layers.Embedding(7, 5)])
    with pytest.raises(ValueError, match=message):
        tokenizer(keras.Input((), dtype="string"))


@pytest.mark.once
def test_symbolic_inputs_that_are_no_batch_of_strings():
    for inputs in (keras.Input((1,), dtype="string"), keras.Input((), dtype="int32")):
        with pytest.raises(ValueError, match=r"of shape \(batch,\); .* `keras.Input"):
            ByteTokenizer()(inputs)
    with pytest.raises(ValueError, match="`sequence_length` must be .* at least 2"):
        ByteTokenizer()(
            keras.Input((), dtype="string"), add_end=True, sequence_length=1
        )


def test_bad_arguments():
    tokenizer = ByteTokenizer()
    for texts in ([3, 5], np.zeros(2), keras.ops.zeros((2,)), [["a"], ["b", "c"]]):
        with pytest.raises(ValueError, match="`texts` must be strings; received"):
            tokenizer(texts)
    for text in ("a\ud800", ["a\ud800"]):
        with pytest.raises(ValueError, match=r"surrogate U\+D800 .* in row 0"):
            tokenizer(text)
    with pytest.raises(ValueError, match=r"a text or a batch .* shape \(1, 1\)"):
        tokenizer([["a"]])
    for length in (0, 1.5, "7"):
        with pytest.raises(ValueError, match="`sequence_length` must be an int"):
            tokenizer(["a"], sequence_length=length)
    with pytest.raises(ValueError, match="at least 3; .* tokens around a text are 2"):
        tokenizer(["a"], add_start=True, add_end=True, sequence_length=2)
    with pytest.raises(TypeError, match="positional"):
        tokenizer(["a"], [1])

"""Properties of all tokenizers: token ids, special tokens, saving and loading."""

import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_text import LINES

from keras_transformer.text import CharacterTokenizer, Tokenizer, WordTokenizer

pytestmark = pytest.mark.once


def test_special_tokens_have_the_first_ids(tokenizer):
    assert tokenizer.get_vocabulary()[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.pad_token_id == 0
    assert tokenizer.unknown_token_id == 1
    assert tokenizer.start_token_id == 2
    assert tokenizer.end_token_id == 3


def test_tokens_and_ids_are_inverse(tokenizer):
    vocabulary = tokenizer.get_vocabulary()
    assert len(vocabulary) == len(set(vocabulary)) == tokenizer.vocabulary_size
    for id, token in enumerate(vocabulary):
        assert tokenizer.id_to_token(id) == token
        assert tokenizer.token_to_id(token) == id
    assert tokenizer.token_to_id("語語") == tokenizer.unknown_token_id


def test_ids_outside_the_vocabulary(tokenizer):
    size, unknown = tokenizer.vocabulary_size, tokenizer.unknown_token_id
    for id in (-1, size):
        with pytest.raises(ValueError, match=f"`id` must be from 0 .* `id={id}`"):
            tokenizer.id_to_token(id)
    expected = tokenizer.detokenize([[size - 1, unknown, unknown]]).numpy()
    assert tokenizer.detokenize([[size - 1, size, -7]]).numpy() == expected


def test_start_and_end(tokenizer):
    plain = tokenizer.tokenize(LINES[:2]).to_list()
    framed = tokenizer.tokenize(LINES[:2], add_start=True, add_end=True).to_list()
    ended = tokenizer.tokenize(LINES[:2], add_end=True).to_list()
    assert framed == [[2, *row, 3] for row in plain]
    assert ended == [[*row, 3] for row in plain]


def test_repr():
    settings = "vocabulary_size=11, lowercase=False, decompose=False"
    ids = "pad_token_id=0, unknown_token_id=1, start_token_id=2, end_token_id=3"
    tokens = "['a', 'b', 'c', 'd', 'e', 'f', ...]"
    expected = f"<CharacterTokenizer {settings}, {ids}, tokens={tokens}>"
    assert repr(CharacterTokenizer.train(lines=["abcdefg"])) == expected


def test_describe(tokenizer):
    facts = tokenizer.describe()
    own = {"model_type": "bpe"} if hasattr(tokenizer, "proto") else {"lowercase": False}
    assert own.items() <= facts.items()
    assert facts["vocabulary_size"] == tokenizer.vocabulary_size
    assert facts["tokens"] == tokenizer.get_vocabulary()[4:11]
    assert "object at" not in repr(tokenizer) == str(tokenizer)


def test_empty_text(tokenizer):
    assert tokenizer.tokenize(["", LINES[0]]).to_list()[0] == []
    assert tokenizer.tokenize([""], add_end=True).to_list() == [[3]]
    assert tokenizer.tokenize([]).nrows() == 0
    assert tokenizer.detokenize(np.zeros((2, 3), "int32")).numpy().tolist() == [b""] * 2
    assert tokenizer.detokenize(np.zeros((2, 0), "int32")).numpy().tolist() == [b""] * 2


def test_text_is_never_converted_to_a_special_token(tokenizer):
    special = {0, 2, 3}
    for row in tokenizer.tokenize(["<pad> <s> </s>", "</s>"]).to_list():
        assert row
        assert not special & set(row)


def test_detokenize_drops_padding_and_ids_after_the_end(tokenizer):
    row = tokenizer.tokenize(LINES[:1]).to_list()[0]
    noise = [0, 2, *row, 0, 3, *row, 3]
    assert tokenizer.detokenize([noise]).numpy()[0].decode() == LINES[0]


def test_tokenize_takes_any_batch(tokenizer):
    expected = tokenizer.tokenize(LINES).to_list()
    for convert in (tuple, np.array, tf.constant):
        assert tokenizer.tokenize(convert(LINES)).to_list() == expected
    with pytest.raises(ValueError, match=r"`texts` must be a batch .* in a list"):
        tokenizer.tokenize("a man")


# Graphs of TensorFlow.


def test_inside_a_data_pipeline(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices(LINES).batch(3)
    dataset = dataset.map(tokenizer.tokenize).map(tokenizer.detokenize).unbatch()
    assert [text.decode() for text in dataset.as_numpy_iterator()] == LINES


def test_inside_a_saved_model(tokenizer, tmp_path):
    class Echo(tf.Module):
        def __init__(self, tokenizer):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            return self.tokenizer.detokenize(self.tokenizer.tokenize(texts).to_tensor())

    tf.saved_model.save(Echo(tokenizer), str(tmp_path))
    texts = tf.saved_model.load(str(tmp_path)).serve(tf.constant([*LINES, ""]))
    assert [text.decode() for text in texts.numpy()] == [*LINES, ""]


# Saving and loading.


def test_save_and_load(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    for loader in (Tokenizer, type(tokenizer)):
        loaded = loader.load(path)
        assert type(loaded) is type(tokenizer)
        assert loaded.get_config() == tokenizer.get_config()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(tokenizer)))
    name = type(tokenizer).__name__
    assert config["registered_name"] == f"keras_transformer>{name}"
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(tokenizer)
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()
    assert copy.tokenize(LINES).to_list() == tokenizer.tokenize(LINES).to_list()


def test_pickle(tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.get_config() == tokenizer.get_config()
    text = tokenizer.detokenize(tokenizer.tokenize(["abc"]))
    np.testing.assert_array_equal(copy.detokenize(copy.tokenize(["abc"])), text)


class Unserialisable(CharacterTokenizer):
    def get_config(self):
        return {"object": object()}


def test_failed_save_keeps_the_old_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("old")
    tokenizer = Unserialisable(["<pad>", "<unk>", "<s>", "</s>", "a"])
    with pytest.raises(TypeError, match="not JSON serializable"):
        tokenizer.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_loading_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        Tokenizer.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "content",
    ['{"class_na', "[]", '{"class_name": "Nothing", "config": {}}', "\x80"],
)
def test_loading_a_damaged_file(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=r"`path` must be a file .*tokenizer\.json"):
        Tokenizer.load(path)


def test_loading_another_class(tmp_path):
    path = tmp_path / "tokenizer.json"
    WordTokenizer.train(lines=LINES).save(path)
    with pytest.raises(ValueError, match="contains a WordTokenizer"):
        CharacterTokenizer.load(path)

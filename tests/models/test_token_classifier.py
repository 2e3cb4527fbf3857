"""`TokenClassifier`: words, their first pieces, tags and spans."""

import hugging_face_tokenizers
import keras
import numpy as np
import published_models
import pytest
import tensorflow as tf
import torch
import transformers

from keras_transformer import (
    CharacterTokenizer,
    TextEncoder,
    TokenClassifier,
    load_pretrained,
)
from keras_transformer.dataset.encoder_inputs import encode_words
from keras_transformer.text import HuggingFaceTokenizer

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
TAGS = ["O", "B-X", "I-X"]
SENTENCES = [["a", "bc", "ca"], ["b"], ["ac", "a", "b", "ca"], ["bb", "a"], []]


def tags_of(words):
    """The spans are of words with the letter a."""
    tags = []
    for word in words:
        inside = tags and tags[-1] != "O"
        tags.append("O" if "a" not in word else "I-X" if inside else "B-X")
    return tags


LABELS = [*map(tags_of, SENTENCES)]


def make_classifier(names=TAGS, max_length=16):
    keras.utils.set_random_seed(3)
    encoder = TextEncoder(
        **SIZES,
        dropout=0.0,
        max_length=max_length,
        tokenizer=CharacterTokenizer.train(lines=["abc"]),
    )
    model = TokenClassifier(encoder, names, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.03))
    return model


@pytest.mark.once("torch")
@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "t5"])
def test_pieces_equal_those_of_tokenizers(kind):
    own = hugging_face_tokenizers.KINDS[kind]()
    pad, unknown, start, end = hugging_face_tokenizers.TOKENS[kind]
    names = {"pad_token": pad, "unk_token": unknown, "eos_token": end}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=own, **names)
    ids = [token and own.token_to_id(token) for token in (pad, unknown, start, end)]
    tokenizer = HuggingFaceTokenizer(own.to_str(), *ids)
    sentences = [["the", "cat's", "mats", ",", "2"], ["dogs"], ["sat", "on", "x"]]
    found = encode_words(tokenizer, tf.ragged.constant(sentences))
    if kind in ("roberta", "gpt2"):  # Their words begin with a space inside a text.
        sentences = [[f" {word}" for word in words] for words in sentences]
    for row, places, words in zip(
        found.token_ids.to_list(), found.first_pieces.to_list(), sentences, strict=True
    ):
        expected = theirs(words, is_split_into_words=True, add_special_tokens=False)
        assert row[1:-1] == expected.input_ids
        numbers = expected.word_ids()
        assert places == [1 + numbers.index(number) for number in range(len(words))]


def test_tags_equal_those_of_transformers(tmp_path):
    theirs, tokenizer = published_models.write_folder("bert", tmp_path / "bert")
    model = TokenClassifier(load_pretrained(tmp_path / "bert"), ["X", "Y", "Z"])
    kernel, bias = model.output_dense.get_weights()
    sentences = ["the cats sat on mats", "dogs", "a cat and 2 dogs"]
    for sentence, found in zip(sentences, model.tag(sentences), strict=True):
        words = sentence.split()
        inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = theirs(**inputs).last_hidden_state[0].numpy()
        numbers = inputs.word_ids()
        first = [numbers.index(number) for number in range(len(words))]
        logits = torch.tensor(states[first] @ kernel + bias)
        expected = torch.softmax(logits, -1).numpy()
        assert found.words == words and found.spans == []
        assert found.tags == ["XYZ"[place] for place in expected.argmax(-1)]
        np.testing.assert_allclose(found.scores, expected.max(-1), atol=1e-5)


def test_training_with_lists_and_datasets_is_equal():
    ragged = (tf.ragged.constant(SENTENCES), tf.ragged.constant(LABELS))
    rows = tf.data.Dataset.from_tensor_slices(ragged)
    texts = [" ".join(words) for words in SENTENCES]
    numbers = [[TAGS.index(tag) for tag in row] for row in LABELS]
    losses = []
    for data in (
        {"x": SENTENCES, "y": LABELS, "batch_size": 2},
        {"x": texts, "y": numbers, "batch_size": 2},
        {"x": rows.ragged_batch(2)},
        {"x": rows, "batch_size": 2},
    ):
        model = make_classifier()
        history = model.fit(**data, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses, [losses[0]] * 4, atol=1e-5)
    fit = model.fit(SENTENCES, LABELS, batch_size=5, epochs=8, verbose=0)
    assert fit.history["loss"][-1] < 0.8 * losses[0][0]


def test_the_loss_is_that_of_the_words():
    model = make_classifier()
    loss, accuracy = model.evaluate(SENTENCES, LABELS, verbose=0)
    scores, correct = [], []
    for words, labels in zip(SENTENCES[:-1], LABELS[:-1], strict=True):
        ids = model.encoder.tokenizer.tokenize(words)
        lengths = [0, *np.cumsum(ids.row_lengths())[:-1]]
        row = [2, *ids.flat_values.numpy(), 3]  # between start and end
        states = model.encoder(np.array([row]))
        logits = model.output_dense(states)[0]
        values = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
        places = [TAGS.index(label) for label in labels]
        own = values[1 + np.array(lengths)]
        scores += [*own[range(len(places)), places]]
        correct += [*(own.argmax(-1) == places)]
    np.testing.assert_allclose(loss, -np.mean(scores), atol=1e-5)
    np.testing.assert_allclose(accuracy, np.mean(correct), atol=1e-6)


def test_spans():
    model = make_classifier()
    model.output_dense.set_weights([np.zeros((8, 3)), np.array([0.0, 1.0, 0.0])])
    [found] = model.tag(["a bc"])  # All words have the tag B-X.
    assert found.tags == ["B-X"] * 2 and found.spans == [("X", 0, 1), ("X", 1, 2)]
    model.output_dense.set_weights([np.zeros((8, 3)), np.array([1.0, 0.0, 0.0])])
    assert model.tag(["a bc"])[0].spans == [] and model.tag([]) == []


def test_saving(tmp_path):
    model = make_classifier()
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    for loaded in (
        keras.saving.load_model(tmp_path / "model.keras"),
        TokenClassifier.from_preset(tmp_path / "preset"),
    ):
        assert loaded.class_names == TAGS
        for one, other in zip(loaded.tag(SENTENCES), model.tag(SENTENCES), strict=True):
            assert one.tags == other.tags
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_long_sentences():
    model = make_classifier(max_length=6)
    words = ["ab", "c", "abc", "a"]
    with pytest.warns(UserWarning, match="1 of 2 sentences have more than 6 tokens"):
        long, short = model.tag([words, words[:2]])
    assert long.words == words
    assert long.tags[3] is None and long.scores[3] == 0.0
    assert None not in long.tags[:3] and None not in short.tags
    with pytest.warns(UserWarning, match="Some sentences have more than 6 tokens"):
        model.fit([words], [tags_of(words)], verbose=0)


def test_words_without_tokens_are_unknown():
    model = make_classifier()
    for word in ("", "\u200b", "é"):
        [found] = model.tag([["a", word, "b"]])
        assert len(found.tags) == 3 and None not in found.tags


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([["O", "B-Y"]], "received 'B-Y' in row 0"),
        ([["O"]], "a tag for each word.*2 words and 1 tags in row 0"),
        ([["O", 3]], "numbers from 0 to 2; received 3 in row 0"),
    ],
)
def test_bad_tags(y, message):
    with pytest.raises(ValueError, match=message):
        make_classifier().fit([["a", "b"]], y, verbose=0)


def test_bad_sentences():
    model = make_classifier()
    with pytest.raises(ValueError, match="`sentences` must be texts or lists of words"):
        model.tag([["a", 3]])
    dense = tf.data.Dataset.from_tensors(([["a", "b"]], [["O", "O"]]))
    with pytest.raises(ValueError, match="as ragged tensors.*`ragged_batch`"):
        model.fit(dense, verbose=0)
    data = tf.data.Dataset.from_tensors(
        (tf.ragged.constant([["a", "b"]]), tf.ragged.constant([["O"]]))
    )
    with pytest.raises(Exception, match="`y` must have a tag for each word"):
        model.fit(data, verbose=0)

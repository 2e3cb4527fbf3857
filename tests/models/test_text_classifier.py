"""`TextClassifier` and `TextEncoder.embed`, with texts and pairs of texts."""

import json
import shutil

import hugging_face_tokenizers
import keras
import numpy as np
import published_models
import pytest
import tensorflow as tf
import torch
from tokenizers.processors import BertProcessing, RobertaProcessing

from keras_transformer import (
    CharacterTokenizer,
    LearnedPositionalEncoding,
    TextClassifier,
    TextEncoder,
    load_pretrained,
)
from keras_transformer.dataset.encoder_inputs import encode_texts
from keras_transformer.text import HuggingFaceTokenizer

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
NAMES = ["neither", "cat"]
TEXTS = ["cab", "bab", "c", "abba", "acc", "bb", "cc", "a", "bc", "aa"]
LABELS = ["cat" if "c" in text else "neither" for text in TEXTS]


def make_classifier(names=NAMES, tokenizer=True, **options):
    keras.utils.set_random_seed(3)
    if tokenizer is True:
        tokenizer = CharacterTokenizer.train(lines=["abc"])
    encoder = TextEncoder(
        **SIZES, dropout=0.0, vocabulary_size=7, max_length=8, tokenizer=tokenizer
    )
    model = TextClassifier(encoder, names, dropout=0.0, **options)
    model.compile(keras.optimizers.Adam(0.03))
    return model


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """The folder of a random BERT, its model and its tokenizer."""
    folder = tmp_path_factory.mktemp("folder") / "bert"
    return folder, *published_models.write_folder("bert", folder)


def their_outputs(bert, texts):
    """The hidden states and the pooler's outputs of each text alone."""
    _, model, tokenizer = bert
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    for text in texts:
        parts = [text] if isinstance(text, str) else text
        rows = [tokenizer(x, add_special_tokens=False).input_ids + [sep] for x in parts]
        segments = [0] + [number for number, row in enumerate(rows) for _ in row]
        with torch.no_grad():
            outputs = model(
                input_ids=torch.tensor([[cls, *sum(rows, [])]]),
                token_type_ids=torch.tensor([segments]),
            )
        yield outputs.last_hidden_state[0].numpy(), outputs.pooler_output[0].numpy()


ENGLISH = ["a cat sat on the mat", "dogs", "the cat, the dog; and 2 mats"]
PAIRS = [("a cat sat", "on the mat"), ("dogs", "a"), ("the cat", "")]


@pytest.mark.parametrize("texts", [ENGLISH, PAIRS])
def test_probabilities_equal_those_of_transformers(bert, texts):
    model = TextClassifier(load_pretrained(bert[0]), ["a", "b", "c"])
    assert model.pooling == "pooler"
    kernel, bias = model.output_dense.get_weights()
    logits = [pooled @ kernel + bias for _, pooled in their_outputs(bert, texts)]
    expected = torch.softmax(torch.tensor(np.array(logits)), -1).numpy()
    found = model.classify(texts)
    values = [[*each.probabilities.values()] for each in found]
    np.testing.assert_allclose(values, expected, atol=1e-5)
    best = expected.argmax(-1)
    assert [each.label for each in found] == ["abc"[place] for place in best]
    np.testing.assert_allclose([x.score for x in found], expected.max(-1), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooler"])
def test_embeddings_equal_those_of_transformers(bert, pooling):
    encoder = load_pretrained(bert[0])
    pool = {
        "mean": lambda states, _: states.mean(0),
        "max": lambda states, _: states.max(0),
        "cls": lambda states, _: states[0],
        "pooler": lambda _, pooled: pooled,
    }[pooling]
    expected = np.array([pool(*each) for each in their_outputs(bert, ENGLISH)])
    found = encoder.embed(ENGLISH, pooling, batch_size=2)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    lengths = np.linalg.norm(expected, axis=-1, keepdims=True)
    found = encoder.embed(ENGLISH, pooling, normalize=True)
    np.testing.assert_allclose(found, expected / lengths, atol=1e-5)


@pytest.mark.once("torch")
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_pairs_equal_those_of_tokenizers(kind):
    own = hugging_face_tokenizers.KINDS[kind]()
    names = hugging_face_tokenizers.TOKENS[kind]
    ids = [name and own.token_to_id(name) for name in names]
    around = [(name, own.token_to_id(name)) for name in (names[3], names[2])]
    processing = {"bert": BertProcessing, "roberta": RobertaProcessing}[kind]
    own.post_processor = processing(*around)
    separators = 2 if kind == "roberta" else 1
    tokenizer = HuggingFaceTokenizer(own.to_str(), *ids)
    first, second = [list(side) for side in zip(*PAIRS, strict=True)]
    found = encode_texts(tokenizer, first, second, None, separators, 2 - separators)
    expected = [own.encode(*pair) for pair in PAIRS]
    assert found.token_ids.to_list() == [each.ids for each in expected]
    assert found.segment_ids.to_list() == [each.type_ids for each in expected]
    long = encode_texts(tokenizer, first, second, 7, separators)
    own.enable_truncation(7)
    lengths = [len(own.encode(*pair).ids) for pair in PAIRS]
    assert long.token_ids.row_lengths().numpy().tolist() == lengths
    is_cut = [len(each.ids) > 7 for each in expected]
    assert long.is_cut.numpy().tolist() == is_cut and any(is_cut)


@pytest.mark.parametrize(("name", "expected"), [("roberta", (2, 0)), ("bert", (1, 1))])
def test_pairs_of_published_models(name, expected, tmp_path):
    published_models.random_model(name).save_pretrained(tmp_path)
    encoder = load_pretrained(tmp_path)
    assert (encoder.pair_separators, encoder.second_segment) == expected


def test_embeddings_of_token_ids_and_of_nothing(bert):
    encoder = load_pretrained(bert[0])
    tokenizer = encoder.tokenizer
    rows = tokenizer.tokenize(ENGLISH, add_start=True, add_end=True).to_list()
    np.testing.assert_allclose(encoder.embed(rows), encoder.embed(ENGLISH), atol=1e-5)
    assert encoder.embed([]).shape == (0, encoder.hidden_dim)
    assert encoder.embed("dogs").shape == (1, encoder.hidden_dim)
    with pytest.raises(ValueError, match="received 3 in row 1"):
        encoder.embed(["dogs", 3])
    with pytest.raises(ValueError, match="received 'dogs' in row 1"):
        encoder.embed([("a", "b"), "dogs"])
    for bad in ([3, 9999], [-1, 3], [3] * 9999):
        with pytest.raises(
            ValueError, match="must have token ids from 0 to .*in row 1"
        ):
            encoder.embed([[3, 4], bad])
    with pytest.raises(ValueError, match="`pooling` must be"):
        encoder.embed("dogs", "first")


def test_training_with_lists_and_datasets_is_equal():
    losses = []
    pairs = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    numbers = [NAMES.index(label) for label in LABELS]
    for data in (
        {"x": TEXTS, "y": LABELS, "batch_size": 5},
        {"x": np.array(TEXTS), "y": np.array(numbers), "batch_size": 5},
        {"x": pairs, "batch_size": 5},
        {"x": pairs.batch(5), "validation_data": (TEXTS, LABELS)},
    ):
        model = make_classifier()
        history = model.fit(**data, epochs=2, shuffle=False, verbose=0).history
        losses.append(history["loss"])
    np.testing.assert_allclose(losses, [losses[0]] * 4, atol=1e-5)
    loss, accuracy = model.evaluate(TEXTS, LABELS, verbose=0)
    assert [loss, accuracy] == pytest.approx(
        [history["val_loss"][-1], history["val_accuracy"][-1]]
    )
    found = model.classify(TEXTS)
    scores = [each.probabilities[y] for each, y in zip(found, LABELS, strict=True)]
    np.testing.assert_allclose(loss, -np.log(scores).mean(), atol=1e-5)
    is_right = [each.label == y for each, y in zip(found, LABELS, strict=True)]
    assert accuracy == pytest.approx(np.mean(is_right))
    history = model.fit(TEXTS, LABELS, batch_size=10, epochs=8, verbose=0).history
    assert history["loss"][-1] < 0.8 * losses[0][0]


def test_validation_split_and_weights():
    model = make_classifier()
    model.fit(TEXTS, LABELS, validation_split=0.2, shuffle=False, verbose=0)
    other = make_classifier()
    other.fit(TEXTS[:8], LABELS[:8], shuffle=False, verbose=0)
    weighted = make_classifier()
    weights = [1.0] * 8 + [0.0] * 2
    weighted.fit(TEXTS, LABELS, sample_weight=weights, shuffle=False, verbose=0)
    own, cut = ([x.score for x in each.classify(TEXTS)] for each in (model, other))
    np.testing.assert_allclose(own, cut, atol=1e-5)
    assert not np.allclose(own, [x.score for x in make_classifier().classify(TEXTS)])


def test_several_labels():
    letters = [[letter for letter in "ac" if letter in text] for text in TEXTS]
    model = make_classifier(["a", "c"], multi_label=True)
    hot = np.array([[letter in row for letter in "ac"] for row in letters], int)
    ragged = tf.data.Dataset.from_tensor_slices((TEXTS, tf.ragged.constant(letters)))
    with pytest.raises(ValueError, match="of 0 and 1 of shape .texts, 2.*(10, 3)"):
        model.fit(TEXTS, np.zeros((10, 3)))
    with pytest.raises(ValueError, match="must have a list of names.*in row 0. Pass 0"):
        model.fit(TEXTS, hot.tolist())
    losses = []
    for data in ({"y": letters}, {"y": hot}):
        losses.append(model.evaluate(TEXTS, verbose=0, **data)[0])
    losses.append(model.evaluate(ragged.batch(10), verbose=0)[0])
    losses.append(model.evaluate(ragged, batch_size=10, verbose=0)[0])
    np.testing.assert_allclose(losses, losses[0], atol=1e-6)
    model.fit(TEXTS, letters, epochs=8, verbose=0)
    found = model.classify(TEXTS)
    values = np.array([[*each.probabilities.values()] for each in found])
    crossed = np.where(hot, values, 1 - values)
    loss, accuracy = model.evaluate(TEXTS, letters, verbose=0)
    np.testing.assert_allclose(accuracy, ((values > 0.5) == hot).mean(), atol=1e-6)
    np.testing.assert_allclose(loss, -np.log(crossed).mean(), atol=1e-5)
    assert loss < losses[0]
    for each, row in zip(found, values, strict=True):
        assert each.label == [x for x, y in zip("ac", row, strict=True) if y >= 0.5]
        assert each.score == [y for y in row if y >= 0.5]
    [none] = model.classify("abc", threshold=1.0)
    assert (none.label, none.score) == ([], [])


def test_saving(tmp_path):
    model = make_classifier(pooling="max")
    model.fit(TEXTS, LABELS, verbose=0)
    expected = [each.score for each in model.classify(TEXTS)]
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    for loaded in (
        keras.saving.load_model(tmp_path / "model.keras"),
        TextClassifier.from_preset(tmp_path / "preset"),
    ):
        assert (loaded.class_names, loaded.pooling) == (NAMES, "max")
        found = [each.score for each in loaded.classify(TEXTS)]
        np.testing.assert_allclose(found, expected, atol=1e-6)
        embeddings = loaded.encoder.embed(TEXTS)
        np.testing.assert_allclose(embeddings, model.encoder.embed(TEXTS), atol=1e-6)
    encoder = tmp_path / "encoder"
    model.encoder.save_to_preset(encoder)
    found = TextEncoder.from_preset(encoder).embed(TEXTS)
    np.testing.assert_allclose(found, embeddings, atol=1e-6)


def test_long_texts_are_cut():
    model = make_classifier()
    with pytest.warns(UserWarning, match="1 of 2 texts have more than 8 tokens"):
        found = model.classify(["ab" * 9, "ab"])
    assert found[0].score == pytest.approx(model.classify("ababab")[0].score)
    with pytest.warns(UserWarning, match="Some texts have more than 8 tokens"):
        model.fit(["ab" * 9, "ab"], LABELS[:2], verbose=0)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["cat", "dog"], r"names of classes \('neither', 'cat'\).*'dog' in row 1"),
        ([0, 2], "numbers from 0 to 1; received 2 in row 1"),
        ([0, True], "received True in row 1"),
        ([0, 0.5], "received 0.5 in row 1"),
        (["cat"], "received 1 labels and 2 entries"),
    ],
)
def test_bad_labels(y, message):
    with pytest.raises(ValueError, match=message):
        make_classifier().fit(["ab", "c"], y, verbose=0)


def test_bad_arguments():
    encoder = TextEncoder(**SIZES, vocabulary_size=7)
    for names in ("ab", ["a"], ["a", "a"], [1, 2]):
        with pytest.raises(ValueError, match="`class_names` must have at least two"):
            TextClassifier(encoder, names)
    with pytest.raises(ValueError, match="`encoder` must be a `TextEncoder`"):
        TextClassifier(keras.layers.Dense(3), NAMES)
    with pytest.raises(ValueError, match="for an encoder with `use_pooler=False`"):
        TextClassifier(encoder, NAMES, pooling="pooler")
    with pytest.raises(ValueError, match="has no argument `labels`"):
        TextClassifier(encoder, NAMES, labels=3)
    model = make_classifier(tokenizer=None)
    with pytest.raises(ValueError, match="`texts` must be token ids for a model wit"):
        model.classify("ab")
    with pytest.raises(ValueError, match="`x` must be token ids for a model without"):
        model.fit(["ab"], ["cat"])
    larger = CharacterTokenizer.train(lines=["abcdefgh"])
    with pytest.raises(ValueError, match="`tokenizer` must have at most 7 tokens"):
        TextClassifier(encoder, NAMES, tokenizer=larger)
    own = make_classifier().encoder
    with pytest.raises(ValueError, match="`tokenizer` must be `None` for an encoder"):
        TextClassifier(own, NAMES, tokenizer=larger)
    several = make_classifier(["a", "c"], multi_label=True)
    with pytest.raises(ValueError, match="must have a list of names of classes in eac"):
        several.fit(["ab"], ["a"])


def test_unknown_labels_of_a_dataset():
    model = make_classifier()
    data = tf.data.Dataset.from_tensor_slices((["ab", "c"], ["cat", "dog"]))
    with pytest.raises(Exception, match="`y` must be among the names or numbers"):
        model.fit(data, verbose=0)
    model.fit(TEXTS, LABELS, verbose=0)  # Nothing is lost.


def test_token_ids_without_a_tokenizer():
    model = make_classifier(tokenizer=None)
    rows = np.array([[2, 4, 3, 0], [2, 5, 6, 3]])
    model.fit(rows, np.array([0, 1]), verbose=0)
    found = model.classify(rows)
    logits = keras.ops.convert_to_numpy(model(rows))
    np.testing.assert_allclose(
        [[*each.probabilities.values()] for each in found],
        keras.ops.convert_to_numpy(keras.ops.softmax(logits)),
        atol=1e-5,
    )


def test_a_classifier_without_the_pooler_does_not_train_it(bert, recwarn):
    model = TextClassifier(load_pretrained(bert[0]), ["a", "b"], pooling="mean")
    model.compile("adam")
    pooler = {id(weight) for weight in model.encoder.pooler.weights}
    assert pooler and not pooler & {id(weight) for weight in model.trainable_weights}
    model.fit(ENGLISH, ["a", "b", "a"], verbose=0)
    assert not [each for each in recwarn if "Gradients do not exist" in str(each)]


@pytest.mark.parametrize("positions", [None, LearnedPositionalEncoding(8)])
def test_a_new_classifier_prefers_no_class(positions):
    tokenizer = CharacterTokenizer.train(lines=["abc"])
    sizes = {**SIZES, "hidden_dim": 64, "max_length": 8}
    encoder = TextEncoder(**sizes, tokenizer=tokenizer, positions=positions)
    found = TextClassifier(encoder, ["a", "b"]).classify(TEXTS)
    np.testing.assert_allclose([each.score for each in found], 0.5, atol=0.2)
    # The tokens count as much as the positions.
    first, second = encoder.embed(["aaaaaa", "bbbbbb"], normalize=True)
    assert first @ second < 0.8


def test_the_length_limit_of_sentence_transformers(bert, tmp_path):
    folder = shutil.copytree(bert[0], tmp_path / "bert")
    limit = {"max_seq_length": 5, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit))
    encoder = load_pretrained(folder)
    assert encoder.max_length == 5 < load_pretrained(bert[0]).max_length
    with pytest.warns(UserWarning, match="have more than 5 tokens"):
        encoder.embed(ENGLISH[:1])

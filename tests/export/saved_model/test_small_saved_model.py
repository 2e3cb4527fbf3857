"""SavedModels of a model of bigrams, which is exported in little time."""

import numpy as np
import pytest
import tensorflow as tf
from bigrams import Bigrams

from keras_transformer import (
    BeamSearch,
    NoRepeatNGram,
    RelativeLength,
    Sampling,
    SuppressTokens,
)
from keras_transformer.export import describe_signatures
from keras_transformer.export.saved_model.search_functions import (
    powers_of_two,
    round_up,
)
from keras_transformer.inference.token_ids import length_buckets
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TEXTS = ["b", "", "ca"]
SEARCH = BeamSearch(3, 0.0)


def bigrams(kind=Bigrams):
    """Its most probable output is `<s>` a b c `</s>`, with log-probabilities of 0."""
    table = np.full((7, 7), -100, "float32")
    table[[2, 4, 5, 6], [4, 5, 6, 3]] = 0
    return kind(table, CharacterTokenizer([*SPECIAL, *"abc"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bigrams") / "1"
    bigrams().export(folder, SEARCH, check_texts=TEXTS)
    return folder


@pytest.fixture(scope="module")
def signatures(folder):
    return tf.saved_model.load(str(folder)).signatures


def test_texts_in_and_texts_out(folder, signatures):
    assert list(folder.parent.iterdir()) == [folder]  # No other files remain.
    names = {"serving_default", "nbest", "tokens", "score", "lengths"}
    names |= {"attention", "align"}
    assert set(describe_signatures(folder)) == names == set(signatures)
    for texts, expected in ((TEXTS, ["abc", "", "abc"]), ([], [])):
        outputs = signatures["serving_default"](text=tf.constant(texts, tf.string))
        assert [text.decode() for text in outputs["text"].numpy()] == expected
        np.testing.assert_allclose(outputs["score"], [0.0] * len(texts), atol=1e-6)
    scored = signatures["score"](source=tf.constant(["a"]), target=tf.constant(["ab"]))
    np.testing.assert_allclose(scored["token_scores"], [[0, 0, -100]], atol=1e-4)


@pytest.mark.parametrize(
    "signature, arguments, message",
    [
        ("serving_default", {}, "`text` must have at most max_source_length=9 tokens"),
        ("nbest", {"prefix": ["abcabca"] * 2, "seed": [0] * 2}, "`prefix` must be sho"),
        ("nbest", {"prefix": ["a"], "seed": [1, 2]}, "`prefix` must have one entry"),
        ("nbest", {"prefix": ["", ""], "seed": [1]}, "`seed` must have one entry"),
        ("score", {"target": ["a"]}, "`target` must have one entry for each of `sour"),
        ("align", {"target": ["a"]}, "`target` must have one entry for each of `sour"),
    ],
)
def test_wrong_arguments(signatures, signature, arguments, message):
    texts = ["a", "b" * (9 if signature == "serving_default" else 1)]
    arguments = {**arguments, "source" if "target" in arguments else "text": texts}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures[signature](
            **{name: tf.constant(values) for name, values in arguments.items()}
        )


class Other(Bigrams):
    """A model whose `generate` does not give the texts of its search."""

    score = -3.0

    def generate(self, inputs, *arguments, **options):
        count = len(inputs)
        return ["cab"] * count, np.array([self.score] * count), np.zeros(count, bool)


@pytest.mark.slow
def test_the_check(tmp_path, capsys):
    model = bigrams(Other)
    message = "The SavedModel gives 'abc' .* for 'b', but `generate` gives .* nothing"
    with pytest.raises(RuntimeError, match=message):
        model.export(tmp_path / "1", SEARCH, check_texts=["b", "ca"])
    assert list(tmp_path.iterdir()) == []
    model.score = 1e-6
    message = "2 of 2 outputs differ from those of `generate`"
    keras_arguments = {"format": "tf_saved_model", "input_signature": None}
    with pytest.warns(UserWarning, match=message):
        model.export(
            filepath=tmp_path / "1",
            search=SEARCH,
            check_texts=["b", "ca"],
            verbose=True,
            **keras_arguments,
        )
    assert (tmp_path / "1").is_dir()
    assert f"Saved the model at '{tmp_path / '1'}' in the" in capsys.readouterr().out


@pytest.mark.slow
def test_sampling_logits_processors_and_lengths_of_generate(tmp_path):
    search = Sampling(
        3, top_p=0.9, logits_processors=[NoRepeatNGram(1), SuppressTokens([5])]
    )
    lengths = {"min_length": 3, "max_length": RelativeLength(1, 1)}
    texts = ["abc", "", "deadbeef"]
    table = np.random.default_rng(5).normal(size=(10, 10)).astype("float32")
    model = Bigrams(table, CharacterTokenizer([*SPECIAL, *"abcdef"]))
    model.export(tmp_path / "1", search, check_texts=texts, **lengths)
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    outputs = signatures["nbest"](
        text=tf.constant(texts),
        prefix=tf.constant(["", "", ""]),
        seed=tf.constant([11] * 3),
    )
    served = [[t.decode() for t in row] for row in outputs["text"].numpy()]
    assert served == model.generate(texts, search, seed=11, **lengths)
    assert len(signatures["serving_default"](text=tf.constant(texts))["text"]) == 3


@pytest.mark.once("torch")
def test_other_models_and_formats(tmp_path):
    with pytest.raises(ValueError, match="for ONNX; .*class `Bigrams`. Use `format="):
        bigrams().export(tmp_path / "2", format="onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once("torch")
def test_sizes_are_rounded_up():
    sizes = tf.constant([0, 1, 16, 17, 25, 33, 48, 49, 64, 65, 129], tf.int64)
    steps = length_buckets(64)
    assert steps == [16, 24, 32, 48, 64]
    rounded = [int(round_up(size, steps)) for size in sizes]
    assert rounded == [16, 16, 16, 24, 32, 48, 48, 64, 64, 128, 192]
    assert powers_of_two(2, 64) == [2, 4, 8, 16, 32, 64]

"""SavedModels of models without tokenizers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import BeamSearch, CausalLM, GreedySearch, Sampling, Seq2Seq
from keras_transformer.export import describe_signatures, warmup_requests

pytestmark = pytest.mark.once
SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
SEARCH = BeamSearch(2)
ROWS = [[5, 6, 7, 3], [9, 3], [8, 8, 3]]
PADDED = tf.constant([[5, 6, 7, 3], [9, 3, 0, 0], [8, 8, 3, 0]])


def make_model():
    return Seq2Seq(**SIZES, vocabulary_size=11, max_target_length=12)


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("token_ids") / "1"
    model.export(path, SEARCH, warmup=((1, 4), (2, 4)))
    return path


@pytest.fixture(scope="module")
def signatures(folder):
    return tf.saved_model.load(str(folder)).signatures


@pytest.mark.slow
def test_hypotheses(model, signatures):
    expected = model.generate(ROWS, SEARCH)
    for outputs in (
        signatures["serving_default"](token_ids=PADDED),
        signatures["tokens"](token_ids=PADDED, seed=tf.constant([0, 0, 0])),
    ):
        np.testing.assert_array_equal(outputs["length"], expected.lengths)
        np.testing.assert_allclose(outputs["score"], expected.scores, atol=1e-4)
        length = outputs["token_ids"].shape[2]
        np.testing.assert_array_equal(
            outputs["token_ids"], expected.token_ids[:, :, :length]
        )
    assert signatures["serving_default"](token_ids=PADDED[:0])["score"].shape == (0, 1)


@pytest.mark.slow
def test_scores(model, signatures):
    targets = [[4, 3], [7, 8, 9, 3], [3]]
    padded = tf.constant([[4, 3, 0, 0], [7, 8, 9, 3], [3, 0, 0, 0]])
    outputs = signatures["score"](source=PADDED, target=padded)
    expected = model.score(ROWS, targets)
    np.testing.assert_allclose(outputs["score"], expected.scores, atol=1e-4)
    sums = np.sum(outputs["token_scores"], axis=1)
    np.testing.assert_allclose(sums, expected.scores, atol=1e-4)


@pytest.mark.slow
def test_bad_token_ids(signatures):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be from 0 to 10"):
        signatures["serving_default"](token_ids=tf.constant([[11, 3]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="`seed` must have one"):
        signatures["tokens"](token_ids=PADDED, seed=tf.constant([0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most max_target_len"):
        signatures["score"](source=PADDED[:1], target=tf.fill([1, 13], 4))


@pytest.mark.slow
def test_the_folder(folder):
    assert set(describe_signatures(folder)) == {"serving_default", "tokens", "score"}
    shapes = [each.inputs["token_ids"].shape for each in warmup_requests(folder)]
    assert shapes == [(1, 4), (2, 4)]
    usage = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    name = f"{folder.parent.name}/1"
    code = usage.replace(f'"{name}"', repr(str(folder)))
    assert code != usage
    exec(code, {})


@pytest.mark.slow
def test_a_language_model_with_sampling(tmp_path):
    model = CausalLM(**SIZES, vocabulary_size=11, max_length=12)
    model.export(tmp_path / "1", Sampling(top_k=4), quantization="int8")
    tokens = tf.saved_model.load(str(tmp_path / "1")).signatures["tokens"]
    seeds = tf.constant([5, 6, 5])
    rows = tf.constant([[5, 6], [5, 6], [5, 6]])
    found = tokens(token_ids=rows, seed=seeds)["token_ids"].numpy()
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": ["."]}, "`stop` must not be given for a SavedModel whose"),
        ({"constraints": True}, "`constraints` must be `False` for a SavedModel"),
        ({"check_texts": ["a"]}, "`model` must have tokenizers to be exported"),
    ],
)
def test_options_of_texts(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make_model().export(tmp_path / "1", GreedySearch(), **options)

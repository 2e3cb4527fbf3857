import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import BeamSearch, Ensemble, GreedySearch, Seq2Seq
from keras_transformer.decoding import SearchResult
from keras_transformer.export import checking
from keras_transformer.export.saved_model.quantization import (
    check_quantization,
    restore_numbers,
    round_numbers,
    rounded_model,
)
from keras_transformer.inference.request import Request
from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once("torch")

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdefg"])
SIZES = {"num_layers": 1, "hidden_dim": 34, "intermediate_dim": 41, "num_heads": 2}
TEXTS = ["abc", "", "feed"]
ERRORS = {"float16": 2**-11, "int8": 1 / 254}  # greatest, of the largest number


def make_model(seed=1, **options):
    model = Seq2Seq(
        **SIZES,
        source_tokenizer=LETTERS,
        max_source_length=11,
        max_target_length=5,
        **options,
    )
    rng = np.random.default_rng(seed)
    model.set_weights([w + rng.normal(size=w.shape) * 0.2 for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def ensemble():
    return Ensemble([make_model(), make_model(2, tie_embeddings="none")])


# Numbers.


@pytest.mark.parametrize("axes", [(0,), (0, 1), (1,)])
def test_int8_by_hand(axes):
    weight = np.random.default_rng(3).normal(size=(5, 3, 7)).astype("float32")
    weight[:, :, 2] = 0
    numbers, scales = round_numbers(weight, axes, "int8")
    assert numbers.dtype == np.int8 and scales.dtype == np.float32
    found = np.moveaxis(
        np.array(restore_numbers(numbers, scales)), axes, range(len(axes))
    )
    weight = np.moveaxis(weight, axes, range(len(axes)))
    for place in np.ndindex(*weight.shape[len(axes) :]):
        own = weight[(..., *place)]
        step = np.abs(own).max() / 127
        multiples = [round(x / step) * step if step else 0 for x in own.flat]
        np.testing.assert_allclose(found[(..., *place)].flat, multiples, atol=1e-6)


@pytest.mark.parametrize("quantization, error", ERRORS.items())
def test_only_matrices_are_rounded(ensemble, quantization, error):
    copy = rounded_model(ensemble, quantization)
    assert copy.weights[0] is not ensemble.weights[0]
    count = 0
    for weight, other in zip(ensemble.weights, copy.weights, strict=True):
        before, after = np.array(weight), np.array(other)
        if weight.name in ("kernel", "embeddings"):
            count += 1
            assert 0 < np.abs(after - before).max() <= error * np.abs(before).max()
        else:
            np.testing.assert_array_equal(after, before)
    assert count == 17 + 19


class Scripted:
    """A model with given log-probabilities of its hypotheses."""

    source_spec = None
    source_tokenizer = target_tokenizer = LETTERS

    def __init__(self, scores):
        self.scores = np.array(scores, "float32")

    def generate(self, rows, search, max_length, **options):
        token_ids = np.array([[[4, 3, 0]], [[5, 6, 3]], [[3, 0, 0]]])
        return SearchResult(token_ids, np.array([[2], [3], [1]]), self.scores[:, None])

    def score(self, sources, targets):
        assert targets == [[4, 3], [5, 6, 3], [3]]
        lengths = np.array([2, 3, 1])
        return ScoreResult(self.scores, lengths, [])


def test_the_rounding_error_is_the_greatest_per_token():
    exact, rounded = Scripted([-5.0, -4.0, -1.0]), Scripted([-4.5, -4.9, -1.1])
    request = Request(GreedySearch(), None, 0)
    error = checking.rounding_error(exact, rounded, request, TEXTS)
    np.testing.assert_allclose(error, 0.9 / 3, rtol=1e-5)
    coarse = Scripted([-5.0, -4.0, -1.6])
    message = "`quantization` must change log-prob.* by at most 0.5 per token"
    with pytest.raises(RuntimeError, match=message):
        checking.rounding_error(exact, coarse, request, TEXTS)


# The SavedModel.


@pytest.mark.slow
@pytest.mark.once
def test_a_saved_model_in_int8(ensemble, tmp_path):
    folder, search = tmp_path / "letters" / "1", BeamSearch(2)
    ensemble.export(folder, search, check_texts=TEXTS, quantization="int8")
    signatures = tf.saved_model.load(str(folder)).signatures
    outputs = signatures["serving_default"](text=tf.constant(TEXTS))
    copy = rounded_model(ensemble, "int8")
    texts, scores = copy.generate(TEXTS, search, return_scores=True)
    assert [text.decode() for text in outputs["text"].numpy()] == texts
    np.testing.assert_allclose(outputs["score"], scores, atol=1e-4)
    targets = [text[:4] for text in TEXTS]
    scored = signatures["score"](source=tf.constant(TEXTS), target=tf.constant(targets))
    expected = ensemble.score(TEXTS, targets).scores
    np.testing.assert_allclose(scored["score"], expected, atol=0.5)
    assert np.abs(scored["score"] - expected).max() > 1e-5
    check_stored(folder, ensemble)
    assert "int8, 0.1 MB; log-probabilities" in (folder / "README.md").read_text()


def check_stored(folder, model):
    """Asserts that the weights are stored as bytes, and only once."""
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    types = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    sizes = {dtype: 0 for dtype in (tf.int8, tf.float32)}
    for name, dtype in types.items():
        if dtype in sizes:
            sizes[dtype] += int(np.prod(shapes[name]))
    matrices = [w for w in model.weights if w.name in ("kernel", "embeddings")]
    assert sizes[tf.int8] == sum(int(np.prod(w.shape)) for w in matrices)
    assert sizes[tf.float32] < model.count_params() / 6
    content = (folder / "saved_model.pb").read_bytes()
    graph = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def
    nodes = [node for function in graph.library.function for node in function.node_def]
    numbers = {tf.float32.as_datatype_enum, tf.int8.as_datatype_enum}
    constants = [
        node.ByteSize()
        for node in [*graph.node, *nodes]
        if node.op == "Const" and node.attr["dtype"].type in numbers
    ]
    assert 0 < max(constants) < 34 * 34


def test_unknown_quantization(ensemble, tmp_path):
    message = "`quantization` must be 'float16' or 'int8'; received .*'int4'"
    with pytest.raises(ValueError, match=message):
        check_quantization(ensemble, "int4")
    with pytest.raises(ValueError, match=message):
        ensemble.export(tmp_path / "1", quantization="int4")
    assert not list(tmp_path.iterdir())


def test_quantized_layers_are_refused(tmp_path):
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=16,
        intermediate_dim=16,
        num_heads=2,
        source_tokenizer=CharacterTokenizer.train(lines=["abc"]),
    )
    dense = model.decoder.blocks[0].self_attention.query_dense
    dense.quantize("int8")
    with pytest.raises(ValueError, match="`quantization` must be `None` .*query is"):
        model.export(tmp_path / "1", quantization="int8")
    assert not list(tmp_path.iterdir())

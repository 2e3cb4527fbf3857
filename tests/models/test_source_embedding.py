"""`Seq2Seq` with a `source_embedding`: its sources are arrays."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import BeamSearch, GreedySearch, RelativeLength, Sampling
from keras_transformer.decoding.random_numbers import key_of_array

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
RNG = np.random.default_rng(5)
FRAMES = RNG.normal(size=(3, 14, 5)).astype("float32")
FRAMES[1, 10:] = 0
TARGETS = [[4, 5, 3], [3], [7, 8, 9, 3]]
INPUTS = {
    "encoder_token_ids": FRAMES,
    "decoder_token_ids": np.array([[2, 4, 5, 0], [2, 0, 0, 0], [2, 7, 8, 9]]),
}
LABELS = np.array([[4, 5, 3, 0], [3, 0, 0, 0], [7, 8, 9, 3]])


@keras.saving.register_keras_serializable("test_source_embedding")
class Pairs(keras.layers.Layer):
    """Projects pairs of frames; frames of zeros are padding."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.dense = keras.layers.Dense(width)

    def build(self, input_shape):
        self.dense.build((None, None, 2 * input_shape[-1]))

    def call(self, frames):
        pairs = [frames[:, :-1:2], frames[:, 1::2]]
        return self.dense(ops.concatenate(pairs, axis=-1))

    def compute_mask(self, frames, previous_mask=None):
        return ops.any(ops.not_equal(frames[:, :-1:2], 0), axis=-1)

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def pairs_of_frames():
    return keras.Sequential([keras.Input((None, 5)), Pairs(8)])


def make_model(source_embedding=None, **options):
    positions = kt.PositionalEncoding(), kt.PositionalEncoding()
    settings = {"vocabulary_size": 11, "positions": positions, **SIZES, **options}
    layer = source_embedding or pairs_of_frames()
    return kt.Seq2Seq(source_embedding=layer, **settings)


def sharpened(model):
    """Makes the outputs of a new model differ between sources."""
    for weight in model.weights:
        weight.assign(ops.convert_to_numpy(weight) * 2)
    return model


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return sharpened(make_model())


def logits_of(model, frames=FRAMES):
    inputs = {**INPUTS, "encoder_token_ids": frames}
    return ops.convert_to_numpy(model(inputs))


def padded(frames, extra=6):
    return np.pad(frames, [(0, 0), (0, extra), (0, 0)])


def same_results(result, other, number):
    length = max(result.lengths[number])
    found = [each.token_ids[number, :, :length] for each in (result, other)]
    np.testing.assert_array_equal(*found)
    scores = [each.scores[number] for each in (result, other)]
    np.testing.assert_allclose(*scores, atol=1e-4)


@pytest.mark.once("torch")
def test_the_layer_replaces_the_embedding_and_its_positions():
    model = make_model(positions=kt.PositionalEncoding())
    assert model.source_encoding is None
    embedded, _ = model.embed_source(FRAMES, training=False)
    expected = model.source_embedding(FRAMES)
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (embedded, expected)))
    assert model.source_vocabulary_size == 0
    assert model.tie_embeddings == "target"


def test_the_mask_of_the_layer_is_the_padding_mask(model):
    expected = np.ones((3, 7), bool)
    expected[1, 5:] = False
    mask = ops.convert_to_numpy(model.source_mask(FRAMES))
    np.testing.assert_array_equal(mask, expected)
    logits = logits_of(model)
    np.testing.assert_allclose(logits_of(model, padded(FRAMES)), logits, atol=1e-5)
    alone = model({name: x[1:2] for name, x in INPUTS.items()})
    np.testing.assert_allclose(ops.convert_to_numpy(alone), logits[1:2], atol=1e-5)
    changed = FRAMES.copy()
    changed[1, 2] += 1
    assert np.abs(logits_of(model, changed) - logits)[1].max() > 1e-3


@pytest.mark.once("torch")
def test_without_a_mask_all_positions_are_attended_to():
    convolution = keras.layers.Conv1D(8, 2, strides=2)
    model = make_model(keras.Sequential([keras.Input((14, 5)), convolution]))
    assert ops.convert_to_numpy(model.source_mask(FRAMES)).all()
    changed = FRAMES.copy()
    changed[1, 13] = 3
    difference = np.abs(logits_of(model, changed) - logits_of(model))[1]
    assert difference.max() > 1e-3


def test_a_result_does_not_depend_on_batch_and_padding(model):
    search = BeamSearch(3, num_hypotheses=2, coverage_penalty=0.2)
    options = {"max_length": RelativeLength(1.0, 3.0), "batch_size": 2}
    result = model.generate(FRAMES, search, **options)
    assert (result.lengths[1] <= 8).all()  # five positions, and three tokens more
    ragged = [FRAMES[0], FRAMES[1, :10], FRAMES[2]]
    mixed = model.generate(ragged, search, **options)
    for number in range(3):
        same_results(result, mixed, number)


@pytest.mark.once("torch")
def test_samples_prefixes_streams_and_trees(model):
    samples = {"search": Sampling(num_samples=2), "max_length": 6, "seed": 4}
    result = model.generate(FRAMES, **samples)
    longer = model.generate(padded(FRAMES), **samples)
    for number in range(3):
        same_results(result, longer, number)
    prefix = [[5, 6], [], [4]]
    result = model.generate(FRAMES, GreedySearch(), max_length=6, prefix=prefix)
    assert result.token_ids[0, 0, :2].tolist() == [5, 6]
    streamed = [*model.stream(FRAMES[0], GreedySearch(), max_length=6, prefix=[5, 6])]
    assert streamed == result.token_ids[0, 0, : result.lengths[0, 0]].tolist()
    tree = model.search_tree(FRAMES[0], BeamSearch(2), max_length=4)
    assert tree.best and all(tree.paths)
    with pytest.raises(ValueError, match="whose output has at most 1"):
        model.generate(FRAMES, prefix=prefix, max_length=1)


@pytest.mark.once("torch")
def test_a_search_embeds_a_batch_once(model):
    """PyTorch runs it as written; the compilers of the other backends join calls."""
    calls = []

    class Counted(Pairs):
        def call(self, frames):
            calls.append(len(frames))
            return super().call(frames)

    counted = make_model(keras.Sequential([keras.Input((None, 5)), Counted(8)]))
    counted.set_weights(model.get_weights())
    for search in (GreedySearch(), BeamSearch(2)):
        calls.clear()
        result = counted.generate(FRAMES, search, max_length=4, batch_size=2)
        assert calls == [2, 2]
        expected = model.generate(FRAMES, search, max_length=4)
        np.testing.assert_array_equal(result.token_ids, expected.token_ids)
    calls.clear()
    assert [*counted.stream(FRAMES[0], GreedySearch(), max_length=4)]
    assert calls == [1]
    calls.clear()
    ensemble = kt.Ensemble([counted, model, counted])
    ensemble.generate(FRAMES, GreedySearch(), max_length=4)
    assert calls == [4, 4]


@pytest.mark.once("torch")
def test_phrases(model):
    constraints = [[[9, 8, 7]], [[6], [5, 4]], None]
    options = {"search": BeamSearch(2), "constraints": constraints}
    result = model.generate(FRAMES, **options, max_length=RelativeLength(1.0, -1.0))
    for number, entry in enumerate(constraints):
        assert 0 < result.lengths[number, 0] <= [6, 4, 6][number]
        tokens = result.token_ids[number, 0].tolist()
        for phrase in entry or ():
            places = range(len(tokens) - len(phrase))
            assert phrase in [tokens[n : n + len(phrase)] for n in places]
    with pytest.raises(ValueError, match="3 tokens in row 1, whose output has room"):
        # Of seven and five positions.
        model.generate(FRAMES, **options, max_length=RelativeLength(1.0, -3.0))


@pytest.mark.once("torch")
def test_scores_and_alignments(model):
    scores = model.score(FRAMES, TARGETS)
    log_probs = ops.convert_to_numpy(ops.log_softmax(logits_of(model), axis=-1))
    for row, target, found in zip(log_probs, TARGETS, scores.token_scores, strict=True):
        expected = row[range(len(target)), target]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    alignments = model.align(FRAMES, TARGETS)
    for target, alignment in zip(TARGETS, alignments, strict=True):
        assert alignment.attention.shape == (len(target), 7)
        np.testing.assert_allclose(alignment.attention.sum(axis=1), 1, atol=1e-5)
    assert not alignments[1].attention[:, 5:].any()
    assert alignments[1].positions.max() < 5


def test_keys_of_arrays():
    keys = ops.convert_to_numpy(key_of_array(ops.convert_to_tensor(FRAMES)))
    longer = ops.convert_to_numpy(key_of_array(ops.convert_to_tensor(padded(FRAMES))))
    assert keys.tolist() == longer.tolist() and len({*keys.tolist()}) == 3
    changed = FRAMES.copy()
    changed[0, 0, 0] = np.nextafter(changed[0, 0, 0], np.float32(9))
    other = ops.convert_to_numpy(key_of_array(ops.convert_to_tensor(changed)))
    assert other[0] != keys[0] and other[1] == keys[1]


@pytest.mark.once("torch")
def test_training_and_files(tmp_path):
    model = make_model(dropout=0.0)
    model.compile("adam", kt.LabelSmoothedCrossEntropy(0.0))
    first = model.evaluate(INPUTS, LABELS, verbose=0)
    model.fit(INPUTS, LABELS, epochs=4, verbose=0)
    assert model.evaluate(INPUTS, LABELS, verbose=0) < first
    expected = model.predict(INPUTS, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    for loaded in (
        keras.saving.load_model(tmp_path / "model.keras"),
        kt.Seq2Seq.from_preset(str(tmp_path / "preset"), dropout=0.3),
    ):
        found = loaded.predict(INPUTS, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.once("torch")
def test_a_layer_of_unknown_input_is_built_by_the_first_sources(tmp_path):
    model = make_model(Pairs(8))
    assert model.source_spec.shape is None
    assert model.generate(FRAMES, GreedySearch(), max_length=3).lengths.shape == (3, 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(logits_of(loaded), logits_of(model), atol=1e-6)


@pytest.mark.once("torch")
def test_ids_and_pixels():
    embedding = keras.layers.Embedding(30, 8, mask_zero=True)
    ids = keras.Sequential([keras.Input((None,), dtype="int32"), embedding])
    model = make_model(ids)
    token_ids = np.array([[5, 6, 7, 0], [8, 9, 0, 0]])
    scores = model.score(token_ids, [[4, 3], [5, 3]]).scores
    alone = model.score([[8, 9]], [[5, 3]]).scores
    np.testing.assert_allclose(scores[1:], alone, atol=1e-5)
    pixels = keras.Input((4, 4, 3))
    patches = keras.layers.Conv2D(8, 2, strides=2)(pixels)
    patches = keras.layers.Reshape((4, 8))(patches)
    model = make_model(keras.Model(pixels, patches))
    images = RNG.integers(0, 255, (2, 4, 4, 3)).astype("uint8")
    found = model.generate(images, GreedySearch(), max_length=4)
    expected = model.generate(images.astype("float32"), GreedySearch(), max_length=4)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)


@pytest.mark.once("torch")
def test_a_target_tokenizer_gives_texts(tmp_path):
    model = make_model(vocabulary_size=None, target_tokenizer=TOKENIZER)
    options = {"search": GreedySearch(), "max_length": 6}
    texts = model.generate(FRAMES, **options, prefix=["ab", "", "f"])
    assert [text[:2] for text in texts[:1]] == ["ab"] and texts[2][0] == "f"
    assert "".join(model.stream(FRAMES[0], **options, prefix="ab")) == texts[0]
    texts = model.generate(FRAMES, **options)
    model.save_to_preset(tmp_path / "preset")
    loaded = kt.Seq2Seq.from_preset(str(tmp_path / "preset"))
    ensemble = kt.Ensemble([model, loaded])
    assert ensemble.generate(FRAMES, **options) == texts


TOKENIZER = kt.CharacterTokenizer.train(lines=["abcdef"])


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_vocabulary_size": 9}, "`source_vocabulary_size` must be `None` with"),
        ({"max_source_length": 9}, "`max_source_length` must be `None` with"),
        ({"tie_embeddings": "all"}, "'target' or 'none' with `source_embedding`"),
        ({"vocabulary_size": None}, "must be given with `source_embedding`"),
        ({"target_vocabulary_size": 12}, "and only one size; .*=11`, .*=12`"),
        ({"source_embedding": "conv"}, "must be a Keras layer; .*'conv'"),
        ({"positions": (kt.AlibiBias(), 3)}, "or a pair of them"),
        ({"source_tokenizer": TOKENIZER}, "`source_tokenizer` must be `None` with"),
    ],
)
def test_arguments_that_make_no_sense(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_model(**options)


@pytest.mark.once("torch")
def test_sources_and_layers_of_another_form(model):
    for sources, message in (
        ("a text", "must be arrays of float32 .*received 'a text'"),
        (["a text"], "received an array of <U6 in row 0"),
        (FRAMES[0], r"of shape \(batch, …, 5\) .*received shape \(5,\) in row 0"),
        ([FRAMES[0], FRAMES[0, :, :4]], r"received shape \(14, 4\) in row 1"),
        (3, "received 3"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(sources)
    wide = make_model(keras.Sequential([keras.Input((14, 5)), Pairs(9)]))
    with pytest.raises(ValueError, match=r"hidden_dim=8\); received .*\(3, 7, 9\)"):
        wide(INPUTS)
    one, other = keras.Input((2, 8)), keras.Input((2, 8))
    with pytest.raises(ValueError, match="must have one input; received .*2 inputs"):
        make_model(keras.Model([one, other], one + other))


@pytest.mark.once("torch")
def test_formats_of_token_ids(model, tmp_path):
    for format in ("onnx", "ctranslate2"):
        with pytest.raises(ValueError, match="`source_embedding` must be `None` for"):
            model.export(tmp_path / "model", format=format)

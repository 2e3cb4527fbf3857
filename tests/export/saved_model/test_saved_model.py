import json
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from bigrams import Bigrams
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import (
    BeamSearch,
    NoRepeatNGram,
    RelativeLength,
    Sampling,
    Seq2Seq,
    SuppressTokens,
)
from keras_transformer.export import (
    checking,
    describe_signatures,
    export_saved_model,
)
from keras_transformer.export.saved_model import writer
from keras_transformer.export.saved_model.search_functions import (
    powers_of_two,
    round_up,
)
from keras_transformer.inference.token_ids import length_buckets
from keras_transformer.text import CharacterTokenizer

pytestmark = [pytest.mark.once, pytest.mark.slow]

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SIZES = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
SEARCH = BeamSearch(2, num_hypotheses=2)
TEXTS = ["abc", "", "deadbeef"]
# Operations that are not TensorFlow's own: those of SentencePiece in tensorflow-text,
# and two of XLA in the compiled functions.
MORE_OPERATIONS = {
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
    "SentencepieceDetokenizeOp",
    "XlaDynamicUpdateSlice",
    "XlaOptimizationBarrier",
}


@pytest.fixture(scope="module")
def model():
    model = Seq2Seq(
        **SIZES,
        normalize_first=True,
        max_source_length=9,
        max_target_length=5,
        source_tokenizer=CharacterTokenizer([*SPECIAL, *"abcdef"]),
        target_tokenizer=CharacterTokenizer([*SPECIAL, *"UVWXYZÄ"]),
    )
    rng = np.random.default_rng(187)  # The outputs differ in text and length.
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    target = tmp_path_factory.mktemp("letters") / "1"
    target.mkdir()
    model.export(target, SEARCH, check_texts=TEXTS)
    return target


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(str(folder))


@pytest.fixture
def fake_writing(monkeypatch):
    """Writes a SavedModel without signatures."""

    def write(_, model, folder, **settings):
        (folder / "variables").mkdir(parents=True)
        empty = saved_model_pb2.SavedModel(meta_graphs=[{}])
        (folder / "saved_model.pb").write_bytes(empty.SerializeToString())

    monkeypatch.setattr(writer, "write_with_tensorflow", write)


def serve(loaded, texts):
    outputs = loaded.signatures["serving_default"](text=tf.constant(texts, tf.string))
    served = [text.decode() for text in outputs["text"].numpy()]
    return served, outputs["score"].numpy()


# The signatures.


@pytest.mark.parametrize("count", [1, 3, 5])
def test_outputs_equal_those_of_generate(model, loaded, count):
    texts = (TEXTS + ["f", "ab?"])[-count:]
    hypotheses, scores = model.generate(texts, SEARCH, return_scores=True)
    served, served_scores = serve(loaded, texts)
    assert served == [best for best, _ in hypotheses]
    np.testing.assert_allclose(served_scores, scores[:, 0], atol=1e-4)


@pytest.mark.parametrize("prefix", [["", "", ""], ["XÄ", "U", ""]], ids=["no", "yes"])
def test_all_hypotheses_with_a_prefix(model, loaded, prefix):
    texts = ["abc", "deadbeef", ""]
    outputs = loaded.signatures["nbest"](
        text=tf.constant(texts), prefix=tf.constant(prefix), seed=tf.constant([3] * 3)
    )
    served = [[t.decode() for t in row] for row in outputs["text"].numpy()]
    hypotheses, scores = model.generate(
        texts, SEARCH, prefix=prefix, return_scores=True
    )
    assert served == hypotheses
    np.testing.assert_allclose(outputs["score"], scores, atol=1e-4)
    lengths = [[len(text) + 1 for text in row] for row in served[:2]]
    assert outputs["length"].numpy()[:2].tolist() == lengths


def test_a_prefix_as_long_as_the_output(loaded):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`prefix` must be short"):
        loaded.signatures["nbest"](
            text=tf.constant(["abc"]),
            prefix=tf.constant(["UVWXY"]),
            seed=tf.constant([0]),
        )


def test_scores_are_those_of_score(model, loaded):
    sources, targets = ["abc", "", "deadbeef"], ["Ä", "UVWX", ""]
    outputs = loaded.signatures["score"](
        source=tf.constant(sources), target=tf.constant(targets)
    )
    expected = model.score(sources, targets)
    np.testing.assert_allclose(outputs["score"], expected.scores, rtol=1e-5)
    tokens, scores = outputs["tokens"].numpy(), outputs["token_scores"].numpy()
    assert tokens.shape == scores.shape == (3, 5)
    for i, (target, own) in enumerate(zip(targets, expected.token_scores, strict=True)):
        assert [token.decode() for token in tokens[i] if token] == [*target, "</s>"]
        np.testing.assert_allclose(scores[i, : len(own)], own, atol=1e-5)
        assert not scores[i, len(own) :].any()
    with pytest.raises(tf.errors.InvalidArgumentError, match="`target` must have at"):
        loaded.signatures["score"](
            source=tf.constant(["a"]), target=tf.constant(["UVWXY"])
        )


def test_token_ids(model, loaded):
    rows = np.array([[4, 5, 6, 3], [9, 3, 0, 0], [7, 8, 4, 3]], "int32")
    outputs = loaded.signatures["tokens"](token_ids=tf.constant(rows))
    expected = model.generate(rows, SEARCH)
    np.testing.assert_array_equal(outputs["token_ids"], expected.token_ids)
    np.testing.assert_array_equal(outputs["length"], expected.lengths)
    np.testing.assert_allclose(outputs["score"], expected.scores, atol=1e-4)
    for wrong in (10, -1):
        message = "`token_ids` must be from 0 to 9"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            loaded.signatures["tokens"](token_ids=tf.constant([[wrong, 3]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="`token_ids` must have"):
        loaded.signatures["tokens"](token_ids=tf.constant([[4] * 10]))


@pytest.mark.parametrize(
    "signature, arguments, message",
    [
        ("nbest", {"prefix": ["X"], "seed": [1, 2]}, "`prefix` must have one entry"),
        ("nbest", {"prefix": ["", ""], "seed": [1]}, "`seed` must have one entry"),
        ("nbest", {"prefix": ["", ""], "seed": [1] * 9}, "`seed` must have one entry"),
        (
            "score",
            {"target": ["U"]},
            "`target` must have one entry for each of `source",
        ),
    ],
)
def test_arguments_have_an_entry_for_each_text(loaded, signature, arguments, message):
    arguments = {**arguments, "text" if signature == "nbest" else "source": ["a", "b"]}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        loaded.signatures[signature](
            **{name: tf.constant(values) for name, values in arguments.items()}
        )


def test_operations_are_those_of_a_stock_server(folder):
    graph = saved_model_pb2.SavedModel()
    graph.ParseFromString((folder / "saved_model.pb").read_bytes())
    (meta_graph,) = graph.meta_graphs
    nodes = [node for node in meta_graph.graph_def.node]
    for function in meta_graph.graph_def.library.function:
        nodes += function.node_def
    functions = {f.signature.name for f in meta_graph.graph_def.library.function}
    used = {node.op for node in nodes} - functions
    assert {"StringSplitV2", "While"} & used and len(used) > 50
    assert not used - set(dir(tf.raw_ops)) - MORE_OPERATIONS
    assert not used & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}


def test_threads_get_the_same_outputs(loaded):
    texts = [text for text in ("abc", "f", "deadbeef", "fade", "") for _ in range(4)]
    expected = [serve(loaded, [text])[0] for text in texts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: serve(loaded, [text])[0], texts))
    assert found == expected


def test_the_alignments_of_served_texts(model, loaded):
    texts = ["f", "", "deadbeef", "ab?"]
    outputs = loaded.signatures["attention"](text=tf.constant(texts))
    served, scores = serve(loaded, texts)
    assert [text.decode() for text in outputs["text"].numpy()] == served
    np.testing.assert_allclose(outputs["score"], scores, atol=1e-6)
    assert served[1] == "" and len(set(map(len, served))) > 2
    expected = model.generate(texts, SEARCH, return_alignments=True)[1]
    arrays = {name: output.numpy() for name, output in outputs.items()}
    assert arrays["attention"].shape == (4, max(map(len, served)) + 1, 9)
    for i, (text, (best, _)) in enumerate(zip(texts, expected, strict=True)):
        rows, columns = best.attention.shape
        source = [letter.decode() for letter in arrays["source_tokens"][i] if letter]
        assert source == [*text.replace("?", ""), *["<unk>"] * ("?" in text), "</s>"]
        tokens = [letter.decode() for letter in arrays["tokens"][i] if letter]
        assert tokens == [*served[i], *["</s>"] * (i != 1)] and len(tokens) == rows
        attention = arrays["attention"][i, :rows, :columns]
        np.testing.assert_allclose(attention, best.attention, atol=1e-5)
        np.testing.assert_array_equal(arrays["positions"][i, :rows], best.positions)


def test_attention_scores_are_those_of_every_layer_and_head(model, loaded):
    texts = ["f", "", "deadbeef", "ab?"]
    outputs = loaded.signatures["attention_scores"](text=tf.constant(texts))
    arrays = {name: output.numpy() for name, output in outputs.items()}
    aligned = loaded.signatures["attention"](text=tf.constant(texts))
    for name in ("text", "score", "source_tokens", "tokens"):
        np.testing.assert_array_equal(arrays[name], aligned[name])
    longest = max(len(text) for text in arrays["text"].astype(str)) + 1
    assert arrays["attention_scores"].shape == (4, 2, 3, longest, 9)
    for i in (0, 2, 3):
        sources = model.source_tokenizer.tokenize([texts[i]], add_end=True)
        targets = model.target_tokenizer.tokenize(arrays["text"][i : i + 1].tolist())
        start = [[model.start_token_id]]
        inputs = {
            "encoder_token_ids": sources.numpy(),
            "decoder_token_ids": np.concatenate([start, targets.numpy()], axis=1),
        }
        _, expected = model(inputs, return_attention_scores=True)
        expected = np.stack([keras.ops.convert_to_numpy(s) for s in expected["cross"]])
        rows, columns = expected.shape[-2:]
        found = arrays["attention_scores"][i, :, :, :rows, :columns]
        np.testing.assert_allclose(found, expected[:, 0], atol=1e-5)
        assert not arrays["attention_scores"][i, ..., columns:].any()


def test_sampling_logits_processors_and_lengths_of_generate(model, tmp_path):
    search = Sampling(
        3, top_p=0.9, logits_processors=[NoRepeatNGram(1), SuppressTokens([5])]
    )
    lengths = {"min_length": 3, "max_length": RelativeLength(1, 1)}
    if keras.backend.backend() == "tensorflow":  # Less to compile than the Seq2Seq.
        table = np.random.default_rng(5).normal(size=(10, 10)).astype("float32")
        model = Bigrams(table, CharacterTokenizer([*SPECIAL, *"abcdef"]))
    model.export(tmp_path / "1", search, check_texts=TEXTS, **lengths)
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    outputs = signatures["nbest"](
        text=tf.constant(TEXTS),
        prefix=tf.constant(["", "", ""]),
        seed=tf.constant([11] * 3),
    )
    served = [[t.decode() for t in row] for row in outputs["text"].numpy()]
    assert served == model.generate(TEXTS, search, seed=11, **lengths)
    assert len(signatures["serving_default"](text=tf.constant(TEXTS))["text"]) == 3


def test_another_model_class(tmp_path):
    """Its most probable output is `<s>` a b c `</s>`, with log-probabilities of 0."""
    table = np.full((7, 7), -100, "float32")
    table[[2, 4, 5, 6], [4, 5, 6, 3]] = 0
    bigrams = Bigrams(table, CharacterTokenizer([*SPECIAL, *"abc"]))
    bigrams.export(tmp_path / "1", BeamSearch(3, 0.0), check_texts=["b", "", "ca"])
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    served, scores = serve(loaded, ["b", "", "ca"])
    assert served == ["abc", "", "abc"]
    np.testing.assert_allclose(scores, 0, atol=1e-6)
    scored = loaded.signatures["score"](
        source=tf.constant(["a"]), target=tf.constant(["ab"])
    )
    np.testing.assert_allclose(scored["token_scores"], [[0, 0, -100]], atol=1e-4)
    names = {"serving_default", "nbest", "tokens", "score", "attention"}
    assert set(describe_signatures(tmp_path / "1")) == names
    with pytest.raises(ValueError, match="for ONNX; .*class `Bigrams`. Use `format="):
        bigrams.export(tmp_path / "2", format="onnx")


def test_an_empty_text_gives_an_empty_text(loaded):
    served, scores = serve(loaded, [""])
    assert served == [""]
    assert scores.tolist() == [0.0]


def test_an_empty_batch(loaded):
    served, scores = serve(loaded, [])
    assert served == []
    assert scores.shape == (0,)


def test_signatures(loaded):
    names = ["attention", "attention_scores", "nbest", "score"]
    names += ["serving_default", "tokens"]
    assert sorted(loaded.signatures) == names
    signature = loaded.signatures["serving_default"]
    _, inputs = signature.structured_input_signature
    assert inputs == {"text": tf.TensorSpec([None], tf.string, "text")}
    outputs = signature.structured_outputs
    assert {name: spec.dtype for name, spec in outputs.items()} == {
        "text": tf.string,
        "score": tf.float32,
    }
    assert all(spec.shape.rank == 1 for spec in outputs.values())


def test_a_text_over_the_limit(loaded):
    message = "`text` must have at most max_source_length=9 tokens"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        serve(loaded, ["a", "abcdefabc"])


def test_no_other_files_remain(folder):
    assert list(folder.parent.iterdir()) == [folder]


# The check.


def test_a_failed_check_leaves_nothing(model, tmp_path, monkeypatch, fake_writing):
    answer = json.dumps([["UVW", "", "XYZ"], [-3.0, 0.0, -3.0]])
    monkeypatch.setattr(
        checking, "run_python", lambda *_: f"a line of a log\n{answer}\n"
    )
    message = (
        r"The SavedModel gives 'UVW' \(score -3.0\) for 'abc', but `generate` gives "
        ".* nothing was written"
    )
    with pytest.raises(RuntimeError, match=message):
        model.export(tmp_path / "1", SEARCH, check_texts=TEXTS)
    assert list(tmp_path.iterdir()) == []


def test_ties_are_counted(model, tmp_path, monkeypatch, fake_writing):
    _, scores = model.generate(TEXTS, SEARCH, return_scores=True)
    answer = [["UVW", "", "XYZ"], (scores[:, 0] + 1e-5).tolist()]
    monkeypatch.setattr(checking, "run_python", lambda *_: json.dumps(answer))
    with pytest.warns(
        UserWarning, match="2 of 3 outputs differ from those of `generate`"
    ):
        model.export(tmp_path / "1", SEARCH, check_texts=TEXTS)
    assert (tmp_path / "1").is_dir()


# Errors.


def test_a_model_without_tokenizers(tmp_path):
    model = Seq2Seq(**SIZES, vocabulary_size=11)
    message = "`model` must have tokenizers to be exported; .* Pass tokenizers"
    with pytest.raises(ValueError, match=message):
        export_saved_model(model, tmp_path / "1", SEARCH)
    assert list(tmp_path.iterdir()) == []


def test_sizes_are_rounded_up():
    sizes = tf.constant([0, 1, 16, 17, 25, 33, 48, 49, 64, 65, 129], tf.int64)
    steps = length_buckets(64)
    assert steps == [16, 24, 32, 48, 64]
    rounded = [int(round_up(size, steps)) for size in sizes]
    assert rounded == [16, 16, 16, 24, 32, 48, 48, 64, 64, 128, 192]
    assert powers_of_two(2, 64) == [2, 4, 8, 16, 32, 64]

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import (
    BeamSearch,
    Seq2Seq,
)
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


def serve(loaded, texts):
    outputs = loaded.signatures["serving_default"](text=tf.constant(texts, tf.string))
    served = [text.decode() for text in outputs["text"].numpy()]
    return served, outputs["score"].numpy()


def test_outputs_equal_those_of_generate(model, loaded):
    texts = [*TEXTS, "f", "ab?"]
    hypotheses, scores = model.generate(texts, SEARCH, return_scores=True)
    served, served_scores = serve(loaded, texts)
    assert served == [best for best, _ in hypotheses]
    np.testing.assert_allclose(served_scores, scores[:, 0], atol=1e-4)


def test_all_hypotheses_with_a_prefix(model, loaded):
    texts, prefix = ["abc", "deadbeef", ""], ["XÄ", "U", ""]
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


def test_signatures(loaded):
    names = ["align", "attention", "attention_scores", "lengths", "nbest", "score"]
    names += ["serving_default", "tokens"]
    assert sorted(loaded.signatures) == names
    signature = loaded.signatures["serving_default"]
    _, inputs = signature.structured_input_signature
    assert inputs == {"text": tf.TensorSpec([None], tf.string, "text")}
    outputs = signature.structured_outputs
    assert {name: spec.dtype for name, spec in outputs.items()} == {
        "text": tf.string,
        "score": tf.float32,
        "truncated": tf.bool,
    }
    assert all(spec.shape.rank == 1 for spec in outputs.values())

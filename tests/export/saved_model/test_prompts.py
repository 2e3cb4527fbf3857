"""A SavedModel of a `CausalLM` continues prompts as `generate` does."""

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import BeamSearch, CausalLM, GreedySearch
from keras_transformer.export import warmup_requests

pytestmark = [pytest.mark.once, pytest.mark.slow]

DYNAMIC = {"type": "dynamic", "factor": 2.0, "original_max_length": 5}
PROMPTS = ["two", "", "a man sees"]


@pytest.fixture(scope="module")
def model():
    tokenizer = kt.CharacterTokenizer.train(lines=["a man sees two dogs."])
    model = CausalLM(
        num_layers=2,
        hidden_dim=16,
        intermediate_dim=24,
        num_heads=2,
        tokenizer=tokenizer,
        positions=kt.RotaryEmbedding(scaling=DYNAMIC),
        attention_options={
            "sliding_window": [None, 3],
            "query_key_normalization": "rms",
            "use_bias": ["query", "key", "value"],
        },
        max_length=16,
    )
    rng = np.random.default_rng(3)
    model.set_weights([w + rng.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def signatures(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "1"
    search = BeamSearch(2, num_hypotheses=2)
    model.export(folder, search, max_length=6, check_texts=PROMPTS)
    return tf.saved_model.load(str(folder)).signatures


def test_hypotheses_equal_those_of_generate(model, signatures):
    search = BeamSearch(2, num_hypotheses=2)
    texts, scores = model.generate(PROMPTS, search, max_length=6, return_scores=True)
    found = signatures["nbest"](
        text=tf.constant(PROMPTS),
        prefix=tf.constant([""] * 3),
        seed=tf.constant([0] * 3),
    )
    decoded = [[text.decode() for text in row] for row in found["text"].numpy()]
    assert decoded == texts
    np.testing.assert_allclose(found["score"].numpy(), scores, atol=1e-4)
    rows = model.source_tokenizer.tokenize(PROMPTS).to_tensor().numpy()
    rows[1] = model.pad_token_id  # no tokens
    by_ids = signatures["tokens"](token_ids=tf.constant(rows, tf.int32))
    np.testing.assert_allclose(by_ids["score"].numpy(), scores, atol=1e-4)


def test_scores_equal_those_of_the_model(model, signatures):
    targets = ["dogs", "a man", "."]
    found = signatures["score"](
        source=tf.constant(PROMPTS), target=tf.constant(targets)
    )
    expected = model.score(PROMPTS, targets).scores
    np.testing.assert_allclose(found["score"].numpy(), expected, atol=1e-4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shorter together"):
        signatures["score"](
            source=tf.constant(["a man see"]), target=tf.constant(["a man see"])
        )


def test_signatures(signatures):
    expected = {"serving_default", "nbest", "tokens", "lengths", "score"}
    assert {*signatures} == expected
    message = "`text` must have at most max_length=16 tokens"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures["serving_default"](text=tf.constant(["a man sees a man."]))


def test_pieces_of_a_stream(model, tmp_path):
    model.export(tmp_path / "1", num_beams=1, max_length=99, check_texts=PROMPTS)
    continued = tf.saved_model.load(str(tmp_path / "1")).signatures["continue"]
    (warmed,) = (r for r in warmup_requests(tmp_path / "1") if r[0] == "continue")
    found = continued(**{name: tf.constant(x) for name, x in warmed.inputs.items()})
    assert found["text"].shape == (1,)
    expected = model.generate(PROMPTS, GreedySearch(), max_length=99)
    first = continued(
        text=tf.constant(PROMPTS),
        state=tf.constant([""] * 3),
        seed=tf.constant([0] * 3),
    )
    assert (first["length"].numpy() <= 8).all()
    for whole, piece in zip(expected, first["text"].numpy(), strict=True):
        assert whole.startswith(piece.decode())
    alone = []
    for prompt in PROMPTS:
        state, is_done = tf.constant([""]), False
        while not is_done:
            found = continued(
                text=tf.constant([prompt]), state=state, seed=tf.constant([0])
            )
            state, is_done = found["state"], bool(found["done"][0])
        alone.append(found["text"].numpy()[0].decode())
    assert alone == expected

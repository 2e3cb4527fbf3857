"""A `CausalLM` can be exported, whatever backend has trained it."""

import runpy
from pathlib import Path

import keras
import numpy as np
import pytest
from layer_contract import to_numpy

import keras_transformer as kt

pytestmark = pytest.mark.slow

TEXT = "a man sees two dogs.\n" * 20
PROMPTS = ["two", "", "a man sees"]
GREEDY = kt.GreedySearch()
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_runtime.py"


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(7)
    lines = TEXT.splitlines()
    tokenizer = kt.SentencePieceTokenizer.train(lines=lines, vocabulary_size=20)
    model = kt.CausalLM(
        num_layers=1,
        hidden_dim=16,
        intermediate_dim=24,
        num_heads=2,
        tokenizer=tokenizer,
        positions=kt.RotaryEmbedding(),
        activation="silu",
        feed_forward_options={"gated": True},
        residual_options={"normalization": "rms"},
        max_length=16,
    )
    before = model.get_weights()
    data = kt.text_dataset(
        texts=[TEXT], tokenizer=tokenizer, length=16, tokens_per_batch=64
    )
    model.compile(keras.optimizers.Adam(0.01), kt.LabelSmoothedCrossEntropy(0.0))
    model.fit(data.dataset, epochs=2, shuffle=False, verbose=0)
    changes = zip(before, model.get_weights(), strict=True)
    assert all(np.any(old != new) for old, new in changes)
    return model


def test_ctranslate2(trained, tmp_path):
    folder = tmp_path / "1"
    trained.export(folder, GREEDY, format="ctranslate2", check_texts=PROMPTS)
    loaded = kt.load_ctranslate2(folder)
    ids = np.array(trained.tokenizer.tokenize(["a man sees two"]).to_list())
    np.testing.assert_array_equal(to_numpy(loaded(ids)), to_numpy(trained(ids)))


# With PyTorch, docs/language_models.md exports a SavedModel, which is slower. Both are
# written by the same child process with TensorFlow.
@pytest.mark.once("jax")
def test_onnx(trained, tmp_path):
    folder = tmp_path / "1"
    trained.export(folder, GREEDY, format="onnx", check_texts=PROMPTS)
    rows = [row or [2] for row in trained.tokenizer.tokenize(PROMPTS).to_list()]
    found = runpy.run_path(str(EXAMPLE))["LanguageModel"](folder).decode(rows)
    result = trained.generate(rows, GREEDY)
    pairs = zip(result.token_ids[:, 0], result.lengths[:, 0], strict=True)
    assert found == [row[:length].tolist() for row, length in pairs]

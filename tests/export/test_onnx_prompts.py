"""The ONNX graph of a `CausalLM` continues prompts as `generate` does."""

import pathlib
import runpy

import numpy as np
import pytest

from keras_transformer import (
    CausalLM,
    GreedySearch,
    LearnedPositionalEncoding,
    RotaryEmbedding,
)
from keras_transformer.text import CharacterTokenizer, SentencePieceTokenizer

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "onnx_runtime.py"
GREEDY = GreedySearch()
SIZES = {"num_layers": 2, "hidden_dim": 16, "intermediate_dim": 7, "num_heads": 4}
TEXTS = ["the dog", "", "the cat sat on the mat on the log"]
LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])
# It does not act within `max_length`: beyond it, `score` is not the sum of steps.
DYNAMIC = {"type": "dynamic", "factor": 2.0, "original_max_length": 31}
PROMPTS = [[4, 5, 6], [7], [4, 8, 8, 5, 7, 9, 4]]


def model_of(**design):
    model = CausalLM(**{**SIZES, **design})
    rng = np.random.default_rng(30)
    for weight in model.weights:
        mean = weight.path.endswith(("gamma", "scale"))
        weight.assign(rng.normal(mean, 0.5, weight.shape))
    return model


@pytest.fixture(scope="module")
def model():
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    return model_of(
        tokenizer=SentencePieceTokenizer.train(lines=lines, vocabulary_size=30),
        positions=RotaryEmbedding(scaling=DYNAMIC),
        activation="silu",
        attention_options={
            "num_key_value_heads": 2,
            "query_key_normalization": "rms",
            "use_bias": ["value"],
        },
        feed_forward_options={"gated": True},
        residual_options={"normalization": "rms"},
        max_length=31,
    )


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx") / "animals"
    model.export(folder, GREEDY, format="onnx", check_texts=TEXTS)
    return folder


@pytest.mark.slow
@pytest.mark.once
def test_outputs_of_the_example_equal_those_of_generate(model, folder, capsys):
    expected = model.generate(TEXTS, GREEDY)
    assert len(set(expected)) == 3
    example = runpy.run_path(str(EXAMPLE))
    for texts in (TEXTS, TEXTS[:1]):
        example["main"]([str(folder), *texts, "--threads", "1"])
        assert capsys.readouterr().out.split("\n") == [*expected[: len(texts)], ""]


@pytest.mark.slow
@pytest.mark.once
def test_learned_positions_and_token_ids(tmp_path):
    lines = ["a cab", "a bead", "a face"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=17)
    model = model_of(
        tokenizer=tokenizer,
        positions=LearnedPositionalEncoding(max_length=13),
        activation="gelu",
        scale_embeddings=False,
        add_start_token=True,
        attention_options={
            "num_key_value_heads": 1,
            "sliding_window": [None, 3],
            "query_key_normalization": "layer",
        },
    )
    texts = ["a", "a bead", ""]
    model.export(tmp_path / "1", GREEDY, format="onnx", check_texts=texts)
    language_model = runpy.run_path(str(EXAMPLE))["LanguageModel"](tmp_path / "1")
    result = model.generate(PROMPTS, GREEDY)
    found = language_model.decode(PROMPTS)
    assert found == [
        row[0, : length[0]].tolist()
        for row, length in zip(result.token_ids, result.lengths, strict=True)
    ]
    assert len(found[0]) == 11  # and a prompt of 3, up to the limit of the positions
    outputs = language_model.decode_texts(texts)
    assert outputs == model.generate(texts, GREEDY) and any(outputs)


@pytest.mark.once("torch")
def test_half_types_are_refused(tmp_path):
    model = model_of(tokenizer=LETTERS, dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match="`dtype` must be 'float32' for ONNX"):
        model.export(tmp_path / "1", format="onnx")
    assert not list(tmp_path.iterdir())

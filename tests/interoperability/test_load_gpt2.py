"""Loaded GPT-2 models compute what transformers computes."""

import json

import numpy as np
import pytest
import torch
from gpt2_folders import END, random_model, write_tokenizer
from keras import ops

import keras_transformer as kt
from keras_transformer import BeamSearch, CausalLM, GreedySearch
from keras_transformer.decoding import SearchResult
from keras_transformer.interoperability import load_pretrained

pytestmark = pytest.mark.once("torch")

PROMPTS = [[5, 9, 11], [7], [21, 4, 4, 30, 8, 2, 19], [3, 30]]


@pytest.fixture(scope="module")
def theirs():
    return random_model()


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    theirs.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def ours(folder):
    return load_pretrained(folder)


def logits_of(theirs, rows):
    with torch.no_grad():
        return theirs(torch.tensor(rows)).logits.numpy()


def log_probs(theirs, row):
    return torch.log_softmax(torch.tensor(logits_of(theirs, [row])[0]), -1).numpy()


def rows_of(result, hypothesis=0):
    return [
        row[hypothesis, : lengths[hypothesis]].tolist()
        for row, lengths in zip(result.token_ids, result.lengths, strict=True)
    ]


def test_logits(theirs, ours):
    rows = np.random.default_rng(0).integers(0, 47, (3, 20))
    found = ops.convert_to_numpy(ours(rows))
    np.testing.assert_allclose(found[..., :47], logits_of(theirs, rows), atol=1e-5)
    assert (found[..., 47] < -90).all()


def test_another_activation(tmp_path):
    other = random_model(activation_function="relu", n_inner=24)
    other.save_pretrained(tmp_path)
    rows = np.array(PROMPTS[:1])
    found = ops.convert_to_numpy(load_pretrained(tmp_path)(rows))
    np.testing.assert_allclose(found[..., :47], logits_of(other, rows), atol=1e-5)


def test_greedy_search_with_caches_over_ragged_prompts(theirs, ours):
    found = rows_of(ours.generate(PROMPTS, GreedySearch(), max_length=8))
    for prompt, row in zip(PROMPTS, found, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=END,
        )
        assert row == expected[0, len(prompt) :].tolist()


def test_beams_are_scored_as_transformers_scores_them(theirs, ours):
    search = BeamSearch(4, num_hypotheses=2, length_penalty=0.0)
    result = ours.generate(PROMPTS, search, max_length=6)
    for hypothesis in range(2):
        for number, row in enumerate(rows_of(result, hypothesis)):
            prompt = PROMPTS[number]
            scores = log_probs(theirs, [*prompt, *row])[len(prompt) - 1 : -1]
            total = scores[range(len(row)), row].sum()
            error = abs(total - result.scores[number, hypothesis]) / len(row)
            assert error < 1e-5


def test_it_is_saved_and_trained(ours, tmp_path):
    ours.save_to_preset(tmp_path / "preset")
    again = CausalLM.from_preset(str(tmp_path / "preset"), dropout=0.0)
    rows = np.array([[4, 5, 6, 7]])
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(model(rows)) for model in (ours, again))
    )
    loss = kt.LabelSmoothedCrossEntropy(0.0, pad_token_id=47)
    again.compile("adam", loss)
    losses = again.fit(rows[:, :-1], rows[:, 1:], epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    # The bias that excludes the padding token is not trained.
    assert ops.convert_to_numpy(again.logits_bias).tolist() == [0.0] * 47 + [-100.0]


@pytest.mark.slow
def test_texts(tmp_path):
    size = 20
    theirs = random_model(vocab_size=size, bos_token_id=19, eos_token_id=19)
    theirs.save_pretrained(tmp_path)
    vocabulary = write_tokenizer(tmp_path, lambda count: {"vocab_size": count})
    model = load_pretrained(tmp_path)
    (row,) = model.tokenizer.tokenize(["a man sees"]).to_list()
    assert row[:2] == [vocabulary["a"], vocabulary["Ġman"]]
    prompts = ["a man", "", "so"]
    texts = model.generate(prompts, GreedySearch(), max_length=5)
    whole = model.generate(prompts, GreedySearch(), max_length=5, include_prompt=True)
    assert whole == [p + text for p, text in zip(prompts, texts, strict=True)]
    # The empty prompt is the start token, which is the end token as well.
    found = SearchResult(np.array([[row[:2]]]), np.array([[2]]), np.zeros((1, 1)))
    assert model._generator._detokenize(found, [[19]]) == [["a man"]]
    expected = theirs.generate(
        torch.tensor([[19]]),
        attention_mask=torch.ones(1, 1, dtype=torch.long),
        max_new_tokens=5,
        do_sample=False,
        pad_token_id=19,
    )[0, 1:]
    assert (
        texts[1] == model.tokenizer.detokenize([expected.tolist()]).numpy()[0].decode()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "clip"}, "`model_type in config.json` must be 'gpt2'"),
        ({"n_layer": 3}, "must have all weights: config.json describes a model"),
        ({"n_layer": 1}, r"must hold only tensors .*'transformer\.h\.1\."),
        ({"n_head": 5}, "`n_embd` in config.json must be divisible by 5"),
        ({"n_embd": 64}, "must have all weights: config.json describes a model"),
        ({"tie_word_embeddings": False}, "must hold the tensor 'lm_head.weight'"),
        ({"activation_function": "mish"}, "`activation_function in"),
        ({"activation_function": ["gelu"]}, "`activation_function in"),
        ({"n_embd": None}, "`n_embd in config.json` must be an int of at least 1"),
        ({"layer_norm_epsilon": "1e-5"}, "`layer_norm_epsilon in config.json`"),
        ({"eos_token_id": 99}, "`eos_token_id` in config.json must be below 47"),
    ],
)
def test_damaged_folders(folder, change, message, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=message):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", json.dumps({"<|endoftext|>": 0, "a": "1"}).encode()),
        ("vocab.json", b'{"<|endoftext|>": 0, "\\ud800": 1}'),
        ("merges.txt", "é a".encode("latin-1")),
    ],
)
def test_damaged_vocabularies(folder, name, content, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_tokenizer(
        tmp_path, lambda size: {"bos_token_id": size - 1, "eos_token_id": size - 1}
    )
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} must"):
        load_pretrained(tmp_path)

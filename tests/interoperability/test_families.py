"""Models of each family compute and generate what transformers computes."""

import json

import numpy as np
import published_models
import pytest
import torch
import transformers
from keras import ops

from keras_transformer import (
    BeamSearch,
    CausalLM,
    GreedySearch,
    RotaryEmbedding,
    load_pretrained,
)
from keras_transformer.interoperability import save_pretrained
from keras_transformer.interoperability.comparison import compare_with_transformers
from keras_transformer.interoperability.families import FAMILIES

RNG = np.random.default_rng(0)
# Ragged rows, padded with 1: the padding of BART and RoBERTa, and a token of others.
ROWS = [[5, 9, 11], [7], [21, 4, 4, 30, 8, 2, 19, 33, 40], [3, 30]]
TARGETS = RNG.integers(4, 44, (4, 7))


class Pair:
    """A model of transformers, its folder, and the same model here."""

    def __init__(self, name, folder):
        self.name = name
        self.theirs = published_models.random_model(name)
        self.folder = folder / "theirs"
        self.theirs.save_pretrained(self.folder)
        self.ours = load_pretrained(self.folder)
        # As in transformers, a text that reaches the maximum length has no end token.
        self.ours.forces_end_token = False
        self.is_encoder_decoder = self.theirs.config.is_encoder_decoder
        self.is_encoder = not hasattr(self.theirs, "lm_head")

    def compute(self, rows, theirs=None):
        """Returns the logits, or hidden states, of one length for both sides."""
        theirs = self.theirs if theirs is None else theirs
        inputs = {"input_ids": torch.tensor(rows)}
        if self.is_encoder_decoder:
            inputs |= {"decoder_input_ids": torch.tensor(TARGETS[: len(rows)])}
        with torch.no_grad():
            outputs = theirs(**inputs)
        return (outputs[0] if self.is_encoder else outputs.logits).numpy()

    def compute_ours(self, rows, ours=None):
        ours = self.ours if ours is None else ours
        if not self.is_encoder_decoder:
            return ops.convert_to_numpy(ours(rows))
        targets = TARGETS[: len(rows)]
        inputs = {"encoder_token_ids": rows, "decoder_token_ids": targets}
        return ops.convert_to_numpy(ours(inputs))


@pytest.fixture(scope="module", params=published_models.DESIGNS)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp("model"))


def test_every_family_is_tested():
    tested = {family for _, _, family in published_models.DESIGNS.values()}
    assert tested | {"marian"} == set(FAMILIES)


def test_outputs(pair):
    rows = RNG.integers(4, 44, (3, 19))
    expected = pair.compute(rows)
    found = pair.compute_ours(rows)[..., : expected.shape[-1]]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_padding(pair):
    length = max(map(len, ROWS))
    pad = pair.ours.pad_token_id
    rows = np.array([row + [pad] * (length - len(row)) for row in ROWS])
    found = pair.compute_ours(rows)
    for number, row in enumerate(ROWS):
        one = slice(number, number + 1)
        inputs = {"input_ids": torch.tensor([row])}
        if pair.is_encoder_decoder:
            inputs |= {"decoder_input_ids": torch.tensor(TARGETS[one])}
        with torch.no_grad():
            outputs = pair.theirs(**inputs)
        expected = (outputs[0] if pair.is_encoder else outputs.logits).numpy()
        count = TARGETS.shape[1] if pair.is_encoder_decoder else len(row)
        ours = found[one, :count, : expected.shape[-1]]
        np.testing.assert_allclose(ours, expected, atol=1e-4)


def their_search(pair, row, **options):
    config = pair.theirs.config
    found = pair.theirs.generate(
        torch.tensor([row]),
        attention_mask=torch.ones(1, len(row), dtype=torch.long),
        do_sample=False,
        pad_token_id=pair.ours.pad_token_id,
        eos_token_id=config.eos_token_id,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    skipped = 1 if pair.is_encoder_decoder else len(row)
    return found.sequences[:, skipped:].tolist()


def tokens(result, number, hypothesis=0):
    length = result.lengths[number, hypothesis]
    return result.token_ids[number, hypothesis, :length].tolist()


def until_end(row, end):
    return row[: row.index(end) + 1] if end in row else row


def test_greedy_search_of_ragged_prompts(pair):
    if pair.is_encoder:
        pytest.skip("An encoder generates nothing.")
    result = pair.ours.generate(ROWS, GreedySearch(), max_length=8)
    for number, row in enumerate(ROWS):
        [expected] = their_search(pair, row, num_beams=1, max_new_tokens=8)
        expected = until_end(expected, pair.ours.end_token_id)
        assert tokens(result, number) == expected


def test_beam_search(pair):
    if pair.is_encoder:
        pytest.skip("An encoder generates nothing.")
    search = BeamSearch(3, num_hypotheses=1, length_penalty=0.0)
    result = pair.ours.generate(ROWS, search, max_length=5)
    options = {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"}
    for number, row in enumerate(ROWS):
        [expected] = their_search(pair, row, max_new_tokens=5, **options)
        expected = until_end(expected, pair.ours.end_token_id)
        assert tokens(result, number) == expected


def test_it_goes_out_and_in_again(pair, tmp_path):
    save_pretrained(pair.ours, tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["model_type"] == published_models.DESIGNS[pair.name][2]
    rows = RNG.integers(4, 44, (3, 19))
    theirs = type(pair.theirs).from_pretrained(tmp_path / "ours").eval()
    expected = pair.compute(rows)
    np.testing.assert_allclose(pair.compute(rows, theirs), expected, atol=1e-4)
    again = load_pretrained(tmp_path / "ours")
    one, other = pair.compute_ours(rows), pair.compute_ours(rows, again)
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.once("torch")
def test_several_files(tmp_path):
    theirs = published_models.random_model("llama 2")
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    ours = load_pretrained(tmp_path / "theirs")
    save_pretrained(ours, tmp_path / "ours", max_shard_size=20_000)
    files = sorted(file.name for file in (tmp_path / "ours").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors" and files[1:]
    again = type(theirs).from_pretrained(tmp_path / "ours")
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)
    (tmp_path / "ours" / files[1]).unlink()
    with pytest.raises(FileNotFoundError, match=files[1]):
        load_pretrained(tmp_path / "ours")


@pytest.mark.once("torch")
def test_several_pickled_files(tmp_path):
    theirs = published_models.random_model("llama 2")
    theirs.save_pretrained(tmp_path)
    state = list(theirs.state_dict().items())
    (tmp_path / "model.safetensors").unlink()
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    parts = dict(zip(names, (state[:5], state[5:]), strict=True))
    for name, part in parts.items():
        torch.save(dict(part), tmp_path / name)
    files = {key: name for name, part in parts.items() for key, _ in part}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    rows = RNG.integers(4, 44, (2, 9))
    found = ops.convert_to_numpy(load_pretrained(tmp_path)(rows))
    with torch.no_grad():
        expected = theirs(torch.tensor(rows)).logits.numpy()
    np.testing.assert_allclose(found[..., :47], expected, atol=1e-4)
    index.write_text(json.dumps({"weight_map": {"a": "../b.bin"}}))
    with pytest.raises(ValueError, match="must have a dictionary `weight_map`"):
        load_pretrained(tmp_path)


REFUSED = {
    "llama 2": [
        ({"hidden_act": "quick_gelu"}, "`hidden_act in config.json` must be 'gelu'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "`rope_type in config.json`"),
        ({"pretraining_tp": 2}, "`pretraining_tp in config.json` must be 1"),
    ],
    "qwen 2": [({"layer_types": ["full_attention"]}, "`layer_types` in config.json")],
    "bart": [
        ({"decoder_ffn_dim": 41}, "`decoder_ffn_dim` in config.json must be 40"),
        ({"tie_word_embeddings": False}, "`tie_word_embeddings in config.json` must"),
        ({"decoder_start_token_id": None}, "`decoder_start_token_id` in config.json"),
    ],
    "t5": [({"feed_forward_proj": "gated-mish"}, "`feed_forward_proj in config.json`")],
    "bert": [
        ({"is_decoder": True}, "`is_decoder in config.json` must be False"),
        ({"position_embedding_type": "relative_key"}, "must be 'absolute'"),
    ],
}


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_be_represented(name, tmp_path):
    published_models.random_model(name).save_pretrained(tmp_path)
    # The ids that config.json lacks are those of this file.
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for change, message in REFUSED[name]:
        path.write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match=message):
            load_pretrained(tmp_path)


@pytest.mark.once("torch")
def test_a_head_is_said_to_be_unused(tmp_path):
    config = transformers.BertConfig(**published_models.BERT)
    theirs = transformers.BertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="'cls.predictions.* of a head"):
        ours = load_pretrained(tmp_path)
    rows = RNG.integers(4, 44, (2, 9))
    with torch.no_grad():
        expected = theirs.bert(torch.tensor(rows))[0].numpy()
    found = ops.convert_to_numpy(ours(rows))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert not ours.use_pooler


@pytest.mark.once("torch")
def test_a_model_from_scratch_goes_out_as_the_family_of_its_design(tmp_path):
    model = CausalLM(
        num_layers=2,
        hidden_dim=12,
        intermediate_dim=20,
        num_heads=2,
        vocabulary_size=30,
        scale_embeddings=False,
        activation="silu",
        layer_norm_epsilon=1e-6,
        positions=RotaryEmbedding(500.0),
        attention_options={"use_bias": False, "num_key_value_heads": 1},
        feed_forward_options={"gated": True, "use_bias": False},
        residual_options={"normalization": "rms"},
    )
    model.save_pretrained(tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert theirs.config.model_type == "llama" and theirs.config.pad_token_id == 0
    rows = RNG.integers(4, 29, (2, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(rows)).logits.numpy()
    found = ops.convert_to_numpy(model(rows))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    sizes = {"num_layers": 1, "hidden_dim": 12, "intermediate_dim": 20, "num_heads": 2}
    other = CausalLM(**sizes, vocabulary_size=30, activation="elu")
    with pytest.raises(ValueError, match=r"`activation` must be .*`activation='elu'`"):
        other.save_pretrained(tmp_path / "other")


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", ["gpt2", "mbart", "bert"])
def test_a_folder_is_compared_with_transformers(name, tmp_path):
    theirs = published_models.random_model(name)
    theirs.save_pretrained(tmp_path)
    checks = compare_with_transformers(tmp_path)
    assert [check.equal for check in checks] == [True] * (1 if name == "bert" else 2)


@pytest.mark.once("torch")
def test_a_difference_is_found(tmp_path, monkeypatch):
    published_models.random_model("gpt2").save_pretrained(tmp_path)
    other = published_models.random_model("gpt2", activation_function="relu")
    monkeypatch.setattr(
        transformers.GPT2LMHeadModel, "from_pretrained", lambda *_, **__: other
    )
    logits, search = compare_with_transformers(tmp_path)
    assert not logits.equal and not search.equal

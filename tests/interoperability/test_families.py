"""Models of each family compute and generate what transformers computes."""

import json

import numpy as np
import published_models
import pytest
import torch
from keras import ops

from keras_transformer import BeamSearch, GreedySearch, load_pretrained
from keras_transformer.interoperability import save_pretrained
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

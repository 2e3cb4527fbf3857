"""SavedModels that hold a shortlist."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from bigrams import Bigrams

from keras_transformer import BeamSearch, Shortlist
from keras_transformer.inference import shortlist_batches
from keras_transformer.text import CharacterTokenizer

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdefghijkl"])
SEARCH = BeamSearch(3, num_hypotheses=2)
TEXTS = ["abc", "", "d", "f", "bee"]
PREFIXES = ["", "", "a", "", "fd"]
CONSTRAINTS = [["fe"], ["d"], ["abc", "ca"], [], ["dd"]]
# Each letter has itself and the next but one.
TRANSLATIONS = [*4 * [[-1, -1]], *([i, i + 2] for i in range(4, 10))]
SHORTLIST = Shortlist(TRANSLATIONS, [15])
TABLE = np.random.default_rng(5).normal(size=(16, 16)).astype("float32")


class FewLogits(Bigrams):
    """Computes the logits of some tokens."""

    limits_logits = True

    def limit_state(self, state, token_ids):
        return {"columns": token_ids}

    def decode_step(self, token_ids, index, state):
        logits, _ = super().decode_step(token_ids, index, state)
        return keras.ops.take(logits, state["columns"], axis=-1), state


@pytest.mark.once
def test_few_logits(tmp_path, monkeypatch):
    """Of one text with 8 of the tokens, of five texts with all."""
    monkeypatch.setattr(shortlist_batches, "SMALLEST_SIZE", 8)
    model = FewLogits(TABLE, LETTERS)
    model.export(tmp_path / "1", SEARCH, shortlist=SHORTLIST, warmup=())
    nbest = tf.saved_model.load(str(tmp_path / "1")).signatures["nbest"]
    for texts, begin in ((TEXTS[:1], ["d"]), (TEXTS, PREFIXES)):
        inputs = {"text": texts, "prefix": begin, "seed": [0] * len(texts)}
        check(nbest(**tensors(inputs)), model, texts, prefix=begin)
    card = (tmp_path / "1" / "README.md").read_text()
    assert "10 source tokens with up to 2 translations, 1 frequent" in card


@pytest.mark.once
def test_all_logits_and_phrases(tmp_path):
    model = Bigrams(TABLE, LETTERS)
    options = {"constraints": True, "shortlist": SHORTLIST, "warmup": ()}
    model.export(tmp_path / "1", SEARCH, **options)
    constrained = tf.saved_model.load(str(tmp_path / "1")).signatures["constrained"]
    joined = ["\t".join(entry) for entry in CONSTRAINTS]
    inputs = {"text": TEXTS, "prefix": PREFIXES, "constraints": joined}
    found = constrained(**tensors(inputs))
    check(found, model, TEXTS, prefix=PREFIXES, constraints=CONSTRAINTS)


def tensors(inputs):
    return {name: tf.constant(values) for name, values in inputs.items()}


def check(found, model, texts, **given):
    given |= {"shortlist": SHORTLIST, "return_scores": True}
    expected, scores = model.generate(texts, SEARCH, **given)
    served = [[text.decode() for text in row] for row in found["text"].numpy()]
    assert served == expected
    np.testing.assert_allclose(found["score"], scores, atol=1e-4)

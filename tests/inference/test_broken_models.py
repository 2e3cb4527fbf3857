"""Models whose weights are not finite: every way to decode ends with an error."""

import numpy as np
import pytest

from keras_transformer import BeamSearch, GreedySearch, Sampling, Seq2Seq
from keras_transformer.export import export_saved_model
from keras_transformer.export.checking import compare_texts
from keras_transformer.inference.request import Request
from keras_transformer.text import CharacterTokenizer

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])
once = pytest.mark.once("torch")
SEARCHES = {
    "greedy": GreedySearch(),
    "beam": BeamSearch(2),
    "sampling": Sampling(2),
}
MESSAGE = "must give finite logits; for {} inputs, the first in row {}, one is NaN"


@pytest.fixture(scope="module")
def model():
    """A model that breaks if a source has the letter "f", a target the letter "c"."""
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        tie_embeddings="none",
        source_tokenizer=LETTERS,
        target_tokenizer=LETTERS,
    )
    rng = np.random.default_rng(2)
    weights = [rng.normal(size=weight.shape) for weight in model.weights]
    for weight, values in zip(model.weights, weights, strict=True):
        if weight.path == "source_embedding/embeddings":
            values[9] = np.nan
        if weight.path == "target_embedding/embeddings":
            values[6] = np.inf
    model.set_weights(weights)
    return model


def test_generate_names_the_first_input(model):
    with pytest.raises(FloatingPointError, match=MESSAGE.format("2 of 4", 2)):
        model.generate(["ab", "", "cf", "af"], BeamSearch(2), max_length=4)


@once
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_every_search_ends(model, search):
    options = {"max_length": 4, "seed": 1}
    with pytest.raises(FloatingPointError, match=MESSAGE.format("1 of 1", 0)):
        model.generate("ab", search, prefix="c", **options)
    assert model.generate([""], search, return_scores=True)[1].max() == 0
    # A stream ends after the certain tokens.
    stream = model.stream("ab", search, max_length=5, prefix="abc", seed=1)
    assert next(stream) == "a"
    with pytest.raises(FloatingPointError, match=MESSAGE.format("1 of 1", 0)):
        list(stream)


@once
def test_a_broken_model_has_no_tree_and_is_not_exported(model, tmp_path):
    with pytest.raises(FloatingPointError, match="finite logits"):
        model.search_tree("f", BeamSearch(2))
    folder = tmp_path / "1"
    with pytest.raises(FloatingPointError, match="_embedding/embeddings` has NaN"):
        export_saved_model(model, folder, GreedySearch(), max_length=4)
    with pytest.raises(FloatingPointError, match="finite logits"):
        compare_texts(model, folder, Request(GreedySearch()), ["f"])
    assert not folder.exists()

import keras
import numpy as np
import pytest
from designs import DESIGNS
from layer_contract import to_numpy, with_random_weights

from keras_transformer import (
    BeamSearch,
    CausalLM,
    CharacterTokenizer,
    Ensemble,
    GreedySearch,
    Seq2Seq,
)
from keras_transformer.export import describe_signatures

TOKENIZER = CharacterTokenizer.train(lines=["a small toy"])
LOWERCASE = CharacterTokenizer(**{**TOKENIZER.get_config(), "lowercase": True})
TEXTS = ["a toy", "toys", "", "a small toy"]
SIZES = {"num_layers": 1, "intermediate_dim": 8, "num_heads": 2}
INPUTS = {
    "encoder_token_ids": np.array([[5, 6, 7, 3], [8, 3, 0, 0]], "int32"),
    "decoder_token_ids": np.array([[2, 5, 6], [2, 7, 7]], "int32"),
}


def model_of(width, **options):
    options = {"source_tokenizer": TOKENIZER, **options}
    return with_random_weights(Seq2Seq(hidden_dim=width, **SIZES, **options), width)


@pytest.fixture(scope="module")
def members():
    """Of two widths, one with rotary positions and the rest that is modern."""
    options = {"normalize_first": True, **DESIGNS["modern"]()}
    return [model_of(8), model_of(16, **options)]


@pytest.fixture(scope="module")
def ensemble(members):
    return Ensemble(members)


def test_probabilities_are_the_mean(ensemble, members):
    def probabilities(model):
        logits = to_numpy(model(INPUTS)).astype("float64")
        exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return exponents / exponents.sum(axis=-1, keepdims=True)

    expected = np.mean([probabilities(model) for model in members], axis=0)
    np.testing.assert_allclose(probabilities(ensemble), expected, atol=1e-6)
    np.testing.assert_allclose(np.exp(to_numpy(ensemble(INPUTS))), expected, atol=1e-6)


@pytest.mark.once("torch")
def test_an_ensemble_of_one_model_twice_equals_the_model(members):
    search = BeamSearch(3, num_hypotheses=2)
    options = {"return_scores": True, "max_length": 12}
    twice, scores = Ensemble(members[:1] * 2).generate(TEXTS, search, **options)
    once, expected = members[0].generate(TEXTS, search, **options)
    assert twice == once
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_scores_of_a_search_are_those_of_the_call(ensemble):
    rows = TOKENIZER.tokenize(TEXTS, add_end=True).to_list()
    search = BeamSearch(3, length_penalty=0.0, num_hypotheses=2)
    result = ensemble.generate(rows, search, max_length=12)
    targets = [
        row[:length].tolist()
        for row, length in zip(
            result.token_ids[:, 1], result.lengths[:, 1], strict=True
        )
    ]
    scored = ensemble.score(rows, targets)
    np.testing.assert_allclose(scored.scores, result.scores[:, 1], atol=3e-4)


@pytest.mark.once("torch")
def test_prefixes_streams_coverage_trees_and_files(ensemble, tmp_path):
    search = BeamSearch(2, coverage_penalty=0.2)
    for text in ensemble.generate(
        TEXTS[:2], search, prefix=["a t", "to"], max_length=6
    ):
        assert text.startswith(("a t", "to"))
    greedy = {"search": GreedySearch(), "max_length": 6}
    expected = ensemble.generate(TEXTS, **greedy)
    assert "".join(ensemble.stream(TEXTS[0], **greedy)) == expected[0]
    tree = ensemble.search_tree("a toy", max_length=4)
    assert len(tree.best) == 1
    ensemble.save(tmp_path / "both.keras")
    restored = keras.saving.load_model(tmp_path / "both.keras")
    assert restored.generate(TEXTS, **greedy) == expected
    total = sum(model.count_params() for model in ensemble.models)
    printed = []
    ensemble.summary(print_fn=printed.append)
    assert printed[-1].endswith(f", 2 models\n Total params: {total:,}")


@pytest.mark.once("torch")
def test_alignments_are_those_of_the_mean_attention(ensemble, members):
    pairs = ["a toy", "toys"], ["yot", "a small"]
    found = ensemble.align(*pairs)
    of_each = [model.align(*pairs) for model in members]
    for alignment, *own in zip(found, *of_each, strict=True):
        mean = np.mean([one.attention for one in own], axis=0)
        np.testing.assert_allclose(alignment.attention, mean, atol=1e-6)
        positions = mean[:, :-1].argmax(axis=1)  # not the end token's
        np.testing.assert_array_equal(alignment.positions, positions)
    text, alignment = ensemble.generate("toys", max_length=4, return_alignments=True)
    assert alignment.attention.shape[1] == len("toys") + 1
    with pytest.raises(ValueError, match="`layer` must be from -1 to 0"):
        ensemble.align(*pairs, layer=1)


@pytest.mark.slow
@pytest.mark.once
def test_export(ensemble, tmp_path):
    """`export` itself compares its texts with those of `generate`."""
    search = BeamSearch(2, num_hypotheses=2)
    ensemble.export(tmp_path / "1", search, max_length=6, check_texts=TEXTS[:2])
    signatures = describe_signatures(tmp_path / "1")
    assert "attention" in signatures and "attention_scores" not in signatures


@pytest.mark.once("torch")
def test_language_models_share_their_contexts():
    """Prompt and new tokens together are not longer than the shortest context."""
    sizes = {"num_layers": 1, "hidden_dim": 4, "intermediate_dim": 4, "num_heads": 1}
    models = [
        CausalLM(**sizes, vocabulary_size=7, max_length=length) for length in (12, 9)
    ]
    found = Ensemble(models).generate([[4, 5, 6, 4, 5]], min_length=99, seed=1)
    assert found.lengths.tolist() == [[9 - 5 + 1]]  # the last token is no input


@pytest.mark.once("torch")
def test_the_limits_are_the_lowest_of_the_models(members):
    limited = model_of(8, max_source_length=7, max_target_length=5)
    ensemble = Ensemble([members[0], limited])
    assert (ensemble.max_source_length, ensemble.max_target_length) == (7, 5)
    result = ensemble.generate(INPUTS["encoder_token_ids"], GreedySearch())
    assert result.lengths.max() <= 5


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "models, message",
    [
        (lambda one: [], r"`models` must be a list of .*; received `models=\[\]`"),
        (lambda one: one, "`models` must be a list of .*; received `models=<Seq2Seq"),
        (lambda one: ["a.keras"], "`models` must be a list of .*'a.keras'"),
        (
            lambda one: [one, Seq2Seq(hidden_dim=8, **SIZES, vocabulary_size=41)],
            "`models` must have the same `source_vocabulary_size`; received",
        ),
        (
            lambda one: [
                one,
                model_of(
                    8,
                    source_tokenizer=CharacterTokenizer.train(lines=["b smbll toy"]),
                ),
            ],
            "`models` must have the same `source_tokenizer`; received 2 models",
        ),
        (
            lambda one: [one, model_of(8, source_tokenizer=LOWERCASE)],
            "`source_tokenizer`; .* tokenizers differ",
        ),
    ],
)
def test_models_that_cannot_be_combined(members, models, message):
    with pytest.raises(ValueError, match=message):
        Ensemble(models(members[0]))

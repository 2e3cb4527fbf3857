"""A model in memory as an engine."""

import numpy as np
import pytest
from aligned_words import aligned_words

from keras_transformer import (
    BeamSearch,
    CausalLM,
    Ensemble,
    GreedySearch,
    Sampling,
    Seq2Seq,
)
from keras_transformer.keras_engine import KerasEngine
from keras_transformer.text import CharacterTokenizer, SentencePieceTokenizer
from keras_transformer_runtime.engines.generation_options import GenerationOptions

pytestmark = pytest.mark.once("torch")
TOKENIZER = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdé. "])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
TEXTS = ["abc", " ", "dead"]
OPTIONS = GenerationOptions(
    max_length=7, min_length=3, num_beams=3, length_penalty=1.5, num_hypotheses=2
)
SEARCH = BeamSearch(3, 1.5, 2)


def translator(seed):
    model = Seq2Seq(
        **SIZES,
        source_tokenizer=TOKENIZER,
        target_tokenizer=TOKENIZER,
        max_source_length=11,
        max_target_length=13,
    )
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def model():
    return translator(3)


@pytest.fixture(scope="module")
def engine(model):
    return KerasEngine(model, "letters.keras")


@pytest.fixture(scope="module")
def language_model():
    model = CausalLM(**SIZES, tokenizer=TOKENIZER, max_length=17)
    rng = np.random.default_rng(5)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


def test_hypotheses_equal_those_of_generate(model, engine):
    texts, scores, truncated = model.generate(
        TEXTS,
        SEARCH,
        max_length=7,
        min_length=3,
        return_scores=True,
        return_truncated=True,
    )
    found = engine.generate(TEXTS, OPTIONS)
    assert [[each.text for each in row] for row in found] == texts
    assert [[each.score for each in row] for row in found] == scores.tolist()
    assert [[each.truncated for each in row] for row in found] == truncated.tolist()
    assert [tuple(each)[:3] for each in found[1]] == [("", 0.0, False)] * 2
    batches = [*engine.generate_batches([TEXTS[:1], TEXTS[1:]], OPTIONS)]
    assert [[each.text for each in row] for part in batches for row in part] == texts
    assert engine.generate([], OPTIONS) == []


def test_prefixes_and_ends(model, engine):
    options = GenerationOptions(num_beams=1, max_length=9, min_length=9)
    prefixes = ["ab", "", "é"]
    expected = model.generate(TEXTS, GreedySearch(), 9, min_length=9, prefix=prefixes)
    found = engine.generate(TEXTS, options, prefixes=prefixes)
    assert [row[0].text for row in found] == expected
    stop = (expected[0][4:6],)
    ended = options.with_given(stop=stop)
    [[hypothesis]] = engine.generate(TEXTS[:1], ended, prefixes=prefixes[:1])
    assert hypothesis.text == expected[0][: expected[0].find(*stop)]
    assert not hypothesis.truncated
    assert "".join(engine.stream("abc", options, "ab")) == expected[0][2:]
    assert "".join(engine.stream("abc", ended, "ab")) == hypothesis.text[2:]
    assert [*engine.stream(" ", options)] == []


def test_samples_of_a_language_model(language_model):
    engine = KerasEngine(language_model, "letters.keras")
    assert engine.options == GenerationOptions(samples=True, num_beams=1)
    options = engine.options.with_given(temperature=2.0, seed=7, max_length=5)
    search = Sampling(temperature=2.0, top_p=0.9)
    expected = language_model.generate(TEXTS, search, 5, seed=7)
    found = engine.generate(TEXTS, options)
    assert [row[0].text for row in found] == expected
    assert engine.generate(TEXTS[2:], options)[0][0].text == expected[2]
    assert "".join(engine.stream("abc", options)) == expected[0]
    assert engine.refusal(options, prefix=True) is None
    assert engine.is_language_model and engine.max_target_length == 17


def test_an_ensemble(model):
    ensemble = Ensemble([model, translator(11)])
    engine = KerasEngine(ensemble, "run")
    expected = ensemble.generate(TEXTS, SEARCH, max_length=7, min_length=3)
    found = engine.generate(TEXTS, OPTIONS)
    assert [[each.text for each in row] for row in found] == expected
    assert engine.options == GenerationOptions()


def test_scores(model, engine):
    targets = ["é.", "", "abc"]
    expected = model.score(TEXTS, targets)
    found = engine.score(TEXTS, targets, batch_size=2)
    np.testing.assert_allclose([s.log_probability for s in found], expected.scores)
    assert [score.tokens for score in found] == [
        ["é", ".", "</s>"],
        ["</s>"],
        ["a", "b", "c", "</s>"],
    ]


def test_lengths(engine, language_model):
    assert (engine.max_source_length, engine.max_target_length) == (11, 13)
    texts = ["abc", "", " ", "\u200b", "xyz."]
    assert engine.measure(texts, "source") == [4, 0, 0, 0, 5]
    prompts = KerasEngine(language_model, "letters.keras")
    assert prompts.measure(["abc", " "], "source") == [3, 1]
    assert prompts.measure(["abc", " "], "target") == [4, 0]


def test_the_digest_is_that_of_the_weights(model, engine):
    copy = translator(3)
    assert KerasEngine(copy, "copy.keras").digest() == engine.digest()
    copy.weights[0].assign(copy.weights[0] + 1.0)
    assert KerasEngine(copy, "copy.keras").digest() != engine.digest()


def test_a_model_without_tokenizers():
    model = Seq2Seq(**SIZES, vocabulary_size=11)
    with pytest.raises(ValueError, match="without `source_tokenizer`"):
        KerasEngine(model, "letters.keras")


def test_words_are_aligned(model, engine, language_model):
    sources = ["ab cd dad", "", "de", "c a", "abcd abcd abcd", " \t"]
    targets = ["d c. ab", "ab", " ", "é", "a", "b"]
    expected = [aligned_words(model, sources[i], targets[i]) for i in (0, 3)]
    assert {word for word, _ in expected[0]} != {0}
    found = engine.align(sources, targets, batch_size=1)
    assert found == [expected[0], [], [], expected[1], [], []]
    assert engine.align(["a", " "], ["a" * 13, "a"]) == [[], []]
    assert engine.align([], []) == []
    with pytest.raises(ValueError, match="`align` is for models that translate; rec"):
        KerasEngine(language_model, "letters.keras").align(["a"], ["a"])


def test_a_word_of_several_pieces_is_aligned():
    tokenizer = SentencePieceTokenizer.train(
        vocabulary_size=29, lines=["a man sees two dogs"] * 9
    )
    sides = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    model = Seq2Seq(**SIZES, **sides)
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    source, target = "two  men see a dog", " some dogs sat"
    begins = [
        [tokenizer.id_to_token(i).startswith("▁") for i in row]
        for row in tokenizer.tokenize([source, target]).to_list()
    ]
    words, own = (np.cumsum(row) - 1 for row in begins)
    assert len(own) > 2 * (own[-1] + 1)
    [alignment] = model.align([source], [target])
    pairs = {*zip(own.tolist(), words[alignment.positions[:-1]].tolist(), strict=True)}
    [found] = KerasEngine(model, "pieces.keras").align([source], [target])
    assert found == [(word, number) for number, word in sorted(pairs)]

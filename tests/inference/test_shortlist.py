"""Shortlists: the target tokens that a search considers for a source."""

import collections
import itertools

import keras
import numpy as np
import pytest

from keras_transformer import (
    BeamSearch,
    CausalLM,
    Ensemble,
    GreedySearch,
    Sampling,
    Seq2Seq,
    Shortlist,
    SuppressTokens,
    WordTokenizer,
)
from keras_transformer.inference import shortlist_batches, translation_table
from keras_transformer.inference.translation_table import learn_translation_table
from keras_transformer.text import CharacterTokenizer

SOURCE = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])
TARGET = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"UVWXYZABCDEFG"])
SIZE = TARGET.vocabulary_size
PAD, UNKNOWN, START, END = range(4)
TEXTS = ["abc", "f", "deadbeef", "fab"]
# Source token 4 + i, a letter, has the target tokens 4 + i and 6 + i.
TRANSLATIONS = np.full((SOURCE.vocabulary_size, 3), -1)
TRANSLATIONS[4:, 0] = np.arange(4, 10)
TRANSLATIONS[4:, 2] = np.arange(6, 12)
SHORTLIST = Shortlist(TRANSLATIONS, [16])


@pytest.fixture(scope="module")
def model():
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        output_bias=True,
        max_source_length=9,
        max_target_length=8,
        source_tokenizer=SOURCE,
        target_tokenizer=TARGET,
    )
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    """Lets a small vocabulary have fewer columns than tokens."""
    monkeypatch.setattr(shortlist_batches, "SMALLEST_SIZE", 4)


def allowed_tokens(text):
    letters = [4 + "abcdef".index(letter) for letter in text]
    return {PAD, UNKNOWN, END, 16, *letters, *(letter + 2 for letter in letters)}


def enumerate_outputs(model, text, length):
    """The scores of all outputs of allowed tokens, best first."""
    allowed = allowed_tokens(text)
    words = sorted(allowed - {PAD, END})
    paths = [p for n in range(length) for p in itertools.product(words, repeat=n)]
    decoder = np.full((len(paths), length), PAD, "int32")
    for row, path in zip(decoder, paths, strict=True):
        row[: len(path) + 1] = [START, *path]
    (source,) = SOURCE.tokenize([text], add_end=True).to_list()
    inputs = {
        "encoder_token_ids": np.array([source] * len(paths), "int32"),
        "decoder_token_ids": decoder,
    }
    logits = keras.ops.convert_to_numpy(model(inputs, training=False)).astype("float64")
    scores = {}
    for steps, path in zip(logits, paths, strict=True):
        tokens = (*path, END)
        sums = [sum(np.exp(step[token]) for token in allowed) for step in steps]
        scores[tokens] = sum(
            steps[place][token] - np.log(sums[place])
            for place, token in enumerate(tokens)
        )
    return sorted(scores.items(), key=lambda item: -item[1])


def test_the_search_equals_an_enumeration_of_each_shortlist(model):
    """Of sources in one batch, whose outputs have three tokens with the end."""
    texts = ["f", "d"]
    # As many beams as continuations of the four first tokens.
    search = BeamSearch(20, length_penalty=0.0, num_hypotheses=5)
    rows = SOURCE.tokenize(texts, add_end=True).to_list()
    result = model.generate(rows, search, max_length=3, shortlist=SHORTLIST)
    for text, token_ids, lengths, scores in zip(texts, *result, strict=True):
        expected = enumerate_outputs(model, text, 3)[:5]
        found = [tuple(ids[:n]) for ids, n in zip(token_ids, lengths, strict=True)]
        assert found == [path for path, _ in expected]
        np.testing.assert_allclose(scores, [score for _, score in expected], atol=1e-5)


def test_a_shortlist_of_all_tokens_changes_nothing(model):
    everything = Shortlist(np.full((4, 1), -1), np.arange(SIZE))
    search = BeamSearch(3, num_hypotheses=2)
    texts, scores = model.generate(TEXTS, search, return_scores=True)
    found = model.generate(TEXTS, search, return_scores=True, shortlist=everything)
    assert found[0] == texts
    np.testing.assert_allclose(found[1], scores, atol=1e-6)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("search", "options"),
    [
        (GreedySearch, {}),
        (BeamSearch, {"num_beams": 3, "num_hypotheses": 3, "coverage_penalty": 0.3}),
        (BeamSearch, {"num_beam_groups": 2, "diversity_penalty": 0.5}),
    ],
)
def test_few_logits_give_what_all_logits_give(model, search, options):
    """With a logits processor the model computes all logits; this one does nothing."""
    texts = [*TEXTS, ""]
    given = {"return_scores": True, "shortlist": SHORTLIST, "min_length": 3}
    given |= {"prefix": ["", "GU", "", "X", ""]}
    few = model.generate(texts, search(**options), **given)
    processors = {"logits_processors": [SuppressTokens([PAD])]}
    all_logits = model.generate(texts, search(**options, **processors), **given)
    assert few[0] == all_logits[0]
    np.testing.assert_allclose(few[1], all_logits[1], atol=1e-5)
    alone = model.generate(texts[2:3], search(**options), **given | {"prefix": None})
    assert alone[0] == few[0][2:3]


@pytest.mark.once("torch")
def test_prefixes_and_phrases_are_allowed(model):
    phrases = [["BD"], [], ["EF", "Z"], []]
    texts = model.generate(TEXTS, constraints=phrases, shortlist=SHORTLIST)
    assert "BD" in texts[0] and "EF" in texts[2] and "Z" in texts[2]
    for text, output, own in zip(TEXTS, texts, ["BD", "", "EFZ", ""], strict=True):
        (ids,) = TARGET.tokenize([output]).to_list()
        (others,) = TARGET.tokenize([own]).to_list()
        assert {*ids} <= allowed_tokens(text) | {*others}
    (text,) = model.generate(["f"], prefix=["GG"], shortlist=SHORTLIST)
    assert text.startswith("GG")


@pytest.mark.once("torch")
def test_samples_and_streams(model):
    search = Sampling(3, temperature=2.0)
    given = {"seed": 3, "shortlist": SHORTLIST}
    rows = SOURCE.tokenize(TEXTS, add_end=True).to_list()
    result = model.generate(rows, search, **given)
    for text, outputs in zip(TEXTS, result.token_ids, strict=True):
        assert {*outputs.ravel().tolist()} <= allowed_tokens(text) | {PAD}
    alone = model.generate(rows[2:3], search, **given)
    np.testing.assert_array_equal(alone.token_ids, result.token_ids[2:3])
    streamed = "".join(model.stream("f", shortlist=SHORTLIST))
    assert streamed == model.generate("f", shortlist=SHORTLIST)
    assert streamed != "".join(model.stream("f"))


@pytest.mark.once("torch")
def test_an_ensemble_and_a_separate_output(model):
    """The ensemble of one model computes all logits, the model few."""
    model = Seq2Seq.from_config({**model.get_config(), "tie_embeddings": "none"})
    rng = np.random.default_rng(2)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    given = {"return_scores": True, "shortlist": SHORTLIST}
    few = model.generate(TEXTS, **given)
    found = Ensemble([model]).generate(TEXTS, **given)
    assert found[0] == few[0]
    np.testing.assert_allclose(found[1], few[1], atol=1e-5)


def plain_table(sources, targets, iterations):
    """IBM model 1 with dictionaries; the empty word is `None`."""
    table = collections.defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = collections.Counter(), collections.Counter()
        for source, target in zip(sources, targets, strict=True):
            words = [None, *source]
            for other in target:
                total = sum(table[word, other] for word in words)
                for word in words:
                    counts[word, other] += table[word, other] / total
                    totals[word] += table[word, other] / total
        table.update({pair: n / totals[pair[0]] for pair, n in counts.items()})
    return {pair: table[pair] for pair in counts}


@pytest.mark.once("torch")
def test_the_table_is_that_of_ibm_model_1(monkeypatch):
    monkeypatch.setattr(translation_table, "CHUNK", 40)
    rng = np.random.default_rng(4)
    sources, targets = (
        [rng.integers(3, 9, rng.integers(1, 7)).tolist() for _ in range(23)]
        for _ in range(2)
    )
    table = learn_translation_table(sources, targets, 4)
    expected = plain_table(sources, targets, 4)
    found = {
        (None if source == 9 else int(source), int(target)): probability
        for source, target, probability in zip(*table, strict=True)
    }
    assert found == pytest.approx(expected)
    best = table.best(9, 2)
    for source in range(3, 9):
        words = sorted((-p, t) for (s, t), p in expected.items() if s == source)
        assert best[source].tolist() == [target for _, target in words[:2]]
    assert (best[:3] == -1).all()


LINES = {
    "train.en": ["a dog", "a cat", "the dog", "the cat", "", "a bird", "birds"],
    "train.de": ["ein Hund", "eine Katze", "der Hund", "die Katze", "Ja", "ein Vogel"]
    + ["Vögel"],
}


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A model of words, with its training text in the working folder."""
    monkeypatch.chdir(tmp_path)
    tokenizers = []
    for name, lines in LINES.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        tokenizers.append(WordTokenizer.train(lines=lines, vocabulary_size=20))
    return Seq2Seq(
        num_layers=1,
        hidden_dim=4,
        intermediate_dim=4,
        num_heads=2,
        source_tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
    )


def words_of(model, shortlist, text):
    (row,) = model.source_tokenizer.tokenize([text]).to_list()
    (mask,) = shortlist.allowed(model, [row], [[]])
    names = model.target_tokenizer.get_vocabulary()
    return {name for name, used in zip(names, mask, strict=False) if used}


@pytest.mark.once("torch")
def test_a_shortlist_of_parallel_text(words):
    sizes = {"translations_per_token": 1, "frequent_tokens": 1}
    made = Shortlist.from_parallel_text("train.en", ["train.de"], words, **sizes)
    made.save("words.npz")
    shortlist = Shortlist.load("words.npz")
    assert shortlist.digest() == made.digest()
    special = {"<pad>", "</s>", "<unk>"}
    frequent = words_of(words, shortlist, "") - special
    assert frequent < {"ein", "Hund", "Katze"} and len(frequent) == 1
    assert words_of(words, shortlist, "dog") == special | frequent | {"Hund"}
    assert words_of(words, shortlist, "cat") == special | frequent | {"Katze"}
    every_second = Shortlist.from_parallel_text(
        "train.en", "train.de", words, **sizes, max_pairs=4
    )
    assert "Katze" not in words_of(words, every_second, "cat")
    assert words.generate(["a dog"], shortlist=shortlist, max_length=4)
    (text,) = words.generate(["birds"], GreedySearch(), min_length=9, shortlist=made)
    assert {*text.split()} <= {"<unk>", "Vögel", *frequent}


@pytest.mark.once("torch")
def test_a_lexical_table(words, tmp_path):
    lines = ["Hund dog 0.9", "der dog 0.05", "ein dog 0.04", "x dog 1", "ein NULL 0.5"]
    (tmp_path / "lex.s2t").write_text("\n".join(lines) + "\n")
    sizes = {"translations_per_token": 2, "frequent_tokens": 5}
    shortlist = Shortlist.from_lexical_table("lex.s2t", words, **sizes)
    first = {*words.target_tokenizer.get_vocabulary()[:5]}
    assert words_of(words, shortlist, "dog") == first | {"Hund", "der"}
    for text, message in (
        ("Hund dog\n", "line 1 of `lex.s2t` is 'Hund dog'"),
        ("x y 1\n", "it has none"),
    ):
        (tmp_path / "lex.s2t").write_text(text)
        with pytest.raises(ValueError, match=message):
            Shortlist.from_lexical_table("lex.s2t", words)


@pytest.mark.once("torch")
def test_errors(model, words, tmp_path):
    shortlist = Shortlist.from_parallel_text("train.en", "train.de", words)
    prompts = CausalLM(
        num_layers=1, hidden_dim=4, intermediate_dim=4, num_heads=2, tokenizer=TARGET
    )
    with pytest.raises(ValueError, match="`shortlist` requires a model with cross-att"):
        prompts.generate(["U"], shortlist=SHORTLIST)
    with pytest.raises(ValueError, match="`shortlist` must be a `Shortlist` or `None`"):
        model.generate(["a"], shortlist="words.npz")
    for other in (shortlist, Shortlist(TRANSLATIONS, [SIZE])):
        with pytest.raises(ValueError, match="must be made with the tokenizers of the"):
            model.generate(["a"], shortlist=other)
    for arrays in (([1], []), (TRANSLATIONS, [0.5]), (TRANSLATIONS, [[1]])):
        with pytest.raises(ValueError, match="must be an array of token ids"):
            Shortlist(*arrays)
    for content in (b"", b"PK\3\4", b"text\n"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match="`path` must be a file that `Shortlist."):
            Shortlist.load("file")
    with pytest.raises(ValueError, match="equal numbers of lines; received 7 and 14"):
        Shortlist.from_parallel_text("train.en", ["train.de", "train.de"], words)
    (tmp_path / "blank").write_text("\n\n")
    with pytest.raises(ValueError, match="a pair of lines of 1 to 100 tokens; rec"):
        Shortlist.from_parallel_text("blank", "blank", words)
    with pytest.raises(ValueError, match="`frequent_tokens` must be"):
        Shortlist.from_parallel_text("a", "b", words, frequent_tokens=-1)

"""The options that a run chooses from its text."""

import random
import unicodedata

import pytest

from keras_transformer.dataset.text_pairs import ListedPairs
from keras_transformer.models import Seq2Seq
from keras_transformer.recipe import Recipe
from keras_transformer.recipe.plan import (
    Plan,
    choose_batches,
    choose_fine_tuning,
    choose_metric,
    choose_model,
    choose_schedule,
)
from keras_transformer.recipe.text_statistics import SideStatistics, TextStatistics
from keras_transformer.recipe.tokenizers import Tokenizers, make_tokenizers
from keras_transformer.text import ByteTokenizer, CharacterTokenizer, WordTokenizer

pytestmark = pytest.mark.once("torch")


def plan_of(**options):
    return Plan(Recipe(train=["a.tsv"], output="runs/a", **options).values())


class Data:
    """Stands in for a `ParallelDataset`."""

    def __init__(self, batches):
        self.batches_per_epoch = batches


def schedule(batches, tokens_per_batch=4096, **options):
    plan = plan_of(tokens_per_batch=tokens_per_batch, **options)
    choose_schedule(plan, Data(batches))
    return plan


# Schedules.


def test_the_schedule_of_a_text_of_30_000_sentences():
    plan = schedule(batches=111)
    assert plan["epochs"] == 40
    assert (plan["warmup_steps"], plan["cooldown"], plan["average"]) == (2000, 10, 10)
    assert plan["save_every"] == 111


@pytest.mark.parametrize(
    "batches, tokens_per_batch",
    [(1, 1024), (7, 4096), (300, 1024), (2000, 4096), (100_000, 4096)],
)
def test_every_schedule_reaches_its_peak_and_has_a_cooldown(batches, tokens_per_batch):
    plan = schedule(batches, tokens_per_batch)
    epochs = plan["epochs"]
    assert 5 <= epochs <= 100
    assert 1 <= plan["cooldown"] == plan["average"] <= epochs // 4
    assert 1 <= plan["warmup_steps"] < (epochs - plan["cooldown"]) * batches or (
        plan["warmup_steps"] == batches == 1
    )
    assert plan["save_every"] <= 500


def test_longer_text_has_more_updates_and_fewer_epochs():
    epochs = [schedule(batches)["epochs"] for batches in (30, 100, 300, 1000, 3000)]
    updates = [e * b for e, b in zip(epochs, (30, 100, 300, 1000, 3000), strict=True)]
    assert epochs == sorted(epochs, reverse=True)
    assert updates == sorted(updates)


def test_few_pairs_of_characters_have_more_updates():
    assert schedule(74, 1024)["epochs"] == 25
    assert schedule(74, 1024, source_tokenizer="characters")["epochs"] == 68
    assert schedule(111, source_tokenizer="bpe")["epochs"] == 40
    many = [schedule(b, source_tokenizer="characters")["epochs"] for b in (300, 3000)]
    assert many == [schedule(b)["epochs"] for b in (300, 3000)]


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 17])
def test_given_epochs_determine_the_rest(epochs):
    plan = schedule(batches=27, epochs=epochs)
    assert "epochs" not in [choice.option for choice in plan.choices]
    assert plan["epochs"] == epochs
    assert plan["cooldown"] == epochs // 4
    assert 1 <= plan["average"] <= max(epochs // 4, 1)
    assert plan["warmup_steps"] <= 0.62 * 27 * epochs


def test_a_given_cooldown_determines_the_average_and_limits_the_warmup():
    plan = schedule(batches=10, epochs=8, cooldown=6)
    assert (plan["cooldown"], plan["average"]) == (6, 6)
    assert plan["warmup_steps"] == 12
    plan = schedule(batches=10, epochs=4, cooldown=9)
    assert (plan["average"], plan["warmup_steps"]) == (4, 6)


def test_steps_are_rounded_up_to_epochs():
    plan = schedule(batches=27, steps=55)
    assert (plan["epochs"], plan["cooldown"], plan["average"]) == (3, 0, 1)
    assert plan["warmup_steps"] == int(0.62 * 55)
    reasons = {choice.option: choice.reason for choice in plan.choices}
    assert reasons["epochs"] == "55 updates, 27 in an epoch"


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_a_schedule_that_falls_to_0_has_no_cooldown(name):
    plan = schedule(batches=10, epochs=8, schedule=name)
    assert (plan["cooldown"], plan["average"], plan["warmup_steps"]) == (0, 2, 8)


def test_a_constant_rate_has_a_short_warmup_and_a_cooldown():
    plan = schedule(batches=10, epochs=8, schedule="constant")
    assert (plan["cooldown"], plan["average"], plan["warmup_steps"]) == (2, 2, 6)


# Batches and model.


@pytest.mark.parametrize(
    ("optimizer", "rate", "decay"),
    [
        *(("adam", 0.004, None), ("adamw", 0.004, 0.01), ("muon", 0.004, 0.01)),
        *(("lion", 0.0012, 0.03), ("adafactor", 0.02, None), ("sgd", 0.2, None)),
    ],
)
def test_rate_and_decay_suit_the_optimizer(optimizer, rate, decay):
    plan = plan_of(optimizer=optimizer)
    choose_model(plan, pairs=30_000, target_tokens=10**6)
    assert (plan["learning_rate"], plan["weight_decay"]) == (rate, decay)
    given = plan_of(optimizer=optimizer, learning_rate=0.5, weight_decay=0.0)
    choose_model(given, pairs=30_000, target_tokens=10**6)
    assert (given["learning_rate"], given["weight_decay"]) == (0.5, 0.0)


def test_heads_must_divide_the_width_with_the_chosen_preset():
    plan = plan_of(hidden_dim=20)
    choose_model(plan, pairs=30_000, target_tokens=10**6)  # 4 heads
    message = "received `preset='transformer_base'`, `hidden_dim=20`. .* multiple of 8"
    with pytest.raises(ValueError, match=message):
        choose_model(plan_of(hidden_dim=20), pairs=2_000_000, target_tokens=10**8)


def test_a_batch_has_room_for_a_window():
    plan = plan_of(model="causal", length=5000)
    choose_batches(plan, 10**6)
    assert plan["tokens_per_batch"] == 5000


@pytest.mark.parametrize(
    "tokens, size",
    [(900, 1024), (134_000, 1024), (220_000, 2048), (457_000, 4096), (10**9, 4096)],
)
def test_size_of_batches(tokens, size):
    plan = plan_of()
    choose_batches(plan, tokens)
    assert plan["tokens_per_batch"] == size


@pytest.mark.parametrize(
    "pairs, tokens, expected",
    [
        (8_000, 60_000, ("transformer_tiny", 0.3, 4e-3)),
        (500_000, 7_000_000, ("transformer_small", 0.2, 2e-3)),
        (2_000_000, 50_000_000, ("transformer_base", 0.1, 1e-3)),
    ],
)
def test_model(pairs, tokens, expected):
    plan = plan_of()
    choose_model(plan, pairs, tokens)
    assert tuple(plan[name] for name in ("preset", "dropout", "learning_rate")) == (
        expected
    )


def test_the_learning_rate_suits_a_given_width():
    plan = plan_of(preset="transformer_small", hidden_dim=64)
    choose_model(plan, 1000, 1000)
    assert plan["learning_rate"] == 8e-3


def trained_model(**options):
    sizes = {"num_layers": 1, "hidden_dim": 64, "intermediate_dim": 8, "num_heads": 2}
    return Seq2Seq(**sizes, vocabulary_size=13, dropout=0.25, **options)


def test_fine_tuning():
    """The rate is a tenth of a new model's; limits and dropout are the model's."""
    model = trained_model(
        attention_options={"dropout": 0.05}, max_source_length=31, max_target_length=29
    )
    plan = plan_of(start_from="a.keras")
    choose_fine_tuning(plan, model)
    choose_model(plan, 1000, 1000)
    assert plan["preset"] is None and plan["learning_rate"] == 8e-4
    assert (plan["dropout"], plan["attention_dropout"]) == (0.25, 0.05)
    assert plan["max_length"] == 29 and plan["lora"] is None
    given = {"max_length": 17, "dropout": 0.0, "optimizer": "lion"}
    plan = plan_of(start_from="a.keras", lora=3, **given)
    choose_fine_tuning(plan, trained_model())
    choose_model(plan, 1000, 1000)
    assert plan["learning_rate"] == 0.0024 and plan["weight_decay"] == 0.03
    assert (plan["max_length"], plan["dropout"]) == (17, 0.0)
    assert (plan["lora_alpha"], plan["lora_targets"]) == (6, ["all"])
    plan = plan_of(start_from="a.keras")
    choose_fine_tuning(plan, trained_model())  # which has no limit
    assert plan["max_length"] == 256


def test_a_trained_model_has_fewer_updates_and_a_shorter_warmup():
    new, trained = (schedule(100, **each) for each in ({}, {"start_from": "a.keras"}))
    assert trained["epochs"] == pytest.approx(new["epochs"] / 3, abs=1)
    steps = (trained["epochs"] - trained["cooldown"]) * 100
    assert trained["warmup_steps"] == steps // 10


def test_a_choice_keeps_what_is_given():
    plan = plan_of(dropout=0.0)
    plan.choose("dropout", 0.3, "few pairs")
    plan.choose("average", 5, "the epochs of the cool-down")
    assert plan["dropout"] == 0.0
    assert [(c.option, c.value) for c in plan.choices] == [("average", 5)]


# Statistics and tokenizers.


def test_statistics_of_a_side():
    side = SideStatistics.of(["a bc a", "a d2 bc", ""])
    assert side == SideStatistics(
        words=6,
        distinct_words=3,
        rare_words=3,
        characters=9,
        letters=8,
        distinct_characters=5,
        distinct_letters=5,
    )
    assert SideStatistics.of(["한국", "é"]).distinct_letters == 8
    assert (side.rare_fraction, side.word_length) == (0.5, 1.5)


def statistics(pairs):
    return TextStatistics.of(iter(pairs))


def tokenizers(pairs, **options):
    plan = plan_of(**options)
    made = make_tokenizers(plan, statistics(pairs), [ListedPairs(pairs)])
    return plan, made


def random_words(count, letters="abcdefgh", length=5, seed=1):
    choices = random.Random(seed).choices
    return ["".join(choices(letters, k=length)) for _ in range(count)]


def test_words_to_phonemes():
    words = random_words(400)
    pairs = [(word, " ".join(word.upper())) for word in words]
    plan, made = tokenizers(pairs)
    assert (plan["source_tokenizer"], plan["target_tokenizer"]) == (
        "characters",
        "words",
    )
    assert isinstance(made.source, CharacterTokenizer)
    assert isinstance(made.target, WordTokenizer)
    assert (plan["source_vocabulary_size"], plan["target_vocabulary_size"]) == (12, 12)
    assert plan["vocabularies"] == "separate"
    choose_metric(plan, statistics(pairs))
    assert plan["metric"] == "exact_match"


def test_words_of_syllables_have_letters():
    syllables = [chr(0xAC00 + 37 * index) for index in range(300)]
    words = [*random_words(600, syllables, 3), "".join(syllables), "가갸거"]
    pairs = [(word, "A B") for word in words]
    plan, made = tokenizers(pairs)
    assert plan["source_tokenizer"] == "letters"
    (reason,) = (c.reason for c in plan.choices if c.option == "source_tokenizer")
    letters = {*unicodedata.normalize("NFD", "".join(words))}
    assert reason == f"302 syllables of {len(letters)} letters"
    assert made.source.vocabulary_size == 4 + len(letters) < 80
    assert made.source.get_config()["decompose"]
    plan, made = tokenizers([(target, source) for source, target in pairs])
    assert plan["target_tokenizer"] == "bpe"


def sentences(count, words):
    choose = random.Random(2).choices
    return [" ".join(choose(words, k=8)) for _ in range(count)]


def test_sentences_have_joint_subwords():
    lines = sentences(500, random_words(400, seed=3))
    pairs = [(line, line.upper()) for line in lines]
    plan, made = tokenizers(pairs)
    assert plan["source_tokenizer"] == plan["target_tokenizer"] == "bpe"
    assert plan["vocabularies"] == "joint" and made.source is made.target
    size, tokens = plan["vocabulary_size"], sum(made.count_tokens(statistics(pairs)))
    assert made.source.vocabulary_size == size
    assert (tokens - 1000) / size >= 80
    assert plan["source_vocabulary_size"] is None
    choose_metric(plan, statistics(pairs))
    assert plan["metric"] == "bleu"


def test_texts_of_rare_words_have_fewer_subwords():
    numbers = random_words(3000, letters="0123456789", length=8)
    _, made = tokenizers([(number, number) for number in numbers])
    rare = made.source.vocabulary_size
    frequent = sentences(1000, numbers[:40])
    _, made = tokenizers([(line, line) for line in frequent], vocabulary_size=None)
    assert rare == 250
    assert made.target.vocabulary_size < 250  # of which there are no more


def test_a_text_of_many_characters():
    lines = ["".join(map(chr, range(0x4E00 + i, 0x4E00 + i + 7))) for i in range(600)]
    plan, _ = tokenizers([(line, line) for line in lines])
    assert plan["vocabulary_size"] == 1000


@pytest.mark.parametrize(
    "options, kinds, sizes",
    [
        ({"tokenizer": "bytes"}, ["bytes"] * 2, [260, 260]),
        ({"tokenizer": "words"}, ["words"] * 2, [402, 402]),
        (
            {"source_tokenizer": "unigram", "source_vocabulary_size": 99},
            ["unigram", "bpe"],
            [99, 250],
        ),
        (
            {"tokenizer": "bpe", "vocabularies": "separate", "vocabulary_size": 90},
            ["bpe"] * 2,
            [90, 90],
        ),
        (
            {"target_tokenizer": "characters", "target_vocabulary_size": 11},
            ["bpe", "characters"],
            [250, 11],
        ),
    ],
)
def test_tokenizers_that_are_given(options, kinds, sizes):
    lines = sentences(900, random_words(400, seed=3))
    plan, made = tokenizers([(line, line) for line in lines], **options)
    assert [plan["source_tokenizer"], plan["target_tokenizer"]] == kinds
    assert [each.vocabulary_size for each in made] == sizes
    assert [plan["source_vocabulary_size"], plan["target_vocabulary_size"]] == sizes


def test_lowercase_and_symbols_reach_the_tokenizer():
    options = {"tokenizer": "bpe", "user_defined_symbols": ["<n>"], "lowercase": True}
    lines = [f"{line} <n>" for line in sentences(200, random_words(40))]
    _, made = tokenizers([(line, line.upper()) for line in lines], **options)
    assert "<n>" in made.source.get_vocabulary()
    assert made.source.tokenize(["ABC"]).to_list() == (
        made.source.tokenize(["abc"]).to_list()
    )


def test_a_joint_vocabulary_requires_equal_tokenizers():
    with pytest.raises(ValueError, match="`vocabularies` must be 'separate' unless"):
        tokenizers(
            [("a b", "c d")], vocabularies="joint", target_tokenizer="characters"
        )


def test_tokenizers_are_saved_and_loaded(tmp_path):
    one, other = ByteTokenizer(), CharacterTokenizer.train(lines=["ab"])
    for pair in (Tokenizers(one, one), Tokenizers(one, other)):
        folder = tmp_path / str(pair.source is pair.target)
        folder.mkdir()
        pair.save(folder)
        loaded = Tokenizers.load(folder)
        assert (loaded.source is loaded.target) == (pair.source is pair.target)
        for before, after in zip(pair, loaded, strict=True):
            assert before.get_vocabulary() == after.get_vocabulary()


def test_the_sample_of_a_large_text_represents_it():
    lines = sentences(3000, random_words(100))
    text = statistics((line, line) for line in lines)
    part = text._replace(sample=text.sample[::10])
    made = [
        make_tokenizers(plan_of(), each, [ListedPairs(text.sample)])
        for each in (text, part)
    ]
    assert made[0].source.vocabulary_size == made[1].source.vocabulary_size
    counts = made[0].count_tokens(text)
    assert made[1].count_tokens(part) == pytest.approx(counts, rel=0.02)

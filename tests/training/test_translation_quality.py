import re

import keras
import numpy as np
import pytest

from keras_transformer import (
    BeamSearch,
    GreedySearch,
    LabelSmoothedCrossEntropy,
    Seq2Seq,
    TranslationQuality,
    evaluation,
)
from keras_transformer.text import WordTokenizer

SOURCES = ["a b c d", "d c a b e", "e a b c", "b b d a", "c e d b"]
REFERENCES = ["A B C D", ["D C A B E", "D C A B"], "E A B C", "B B D A", "C E D B"]
FIRST = [
    reference if isinstance(reference, str) else reference[0]
    for reference in REFERENCES
]
SEARCH = GreedySearch()


class Translator(keras.Sequential):
    """Returns the n-th list of texts of `script` in the n-th call of `generate`."""

    source_tokenizer = WordTokenizer.train(lines=["a b c d e"])
    max_source_length = None

    def __init__(self, script=()):
        super().__init__([keras.Input((2,)), keras.layers.Dense(1)])
        self.compile("sgd", "mse")
        self.script = [list(texts) for texts in script]
        self.calls = []

    def generate(self, inputs, search=None, return_truncated=True):
        self.calls.append((inputs, search))
        outputs = self.script[len(self.calls) - 1]
        return outputs, np.zeros(len(outputs), "bool")

    def learn(self, *callbacks, epochs=1, verbose=0):
        arguments = {"epochs": epochs, "verbose": verbose, "callbacks": callbacks}
        return self.fit(np.ones((4, 2)), np.ones((4, 1)), **arguments).history


def quality(**arguments):
    return TranslationQuality(SOURCES, REFERENCES, **arguments)


@pytest.mark.once("torch")
def test_logs_equal_sacrebleu():
    partly = ["A B C D", "D C A B", "E A B", "x", "C E D B"]
    model = Translator([FIRST, partly])
    history = model.learn(quality(search=SEARCH), epochs=2)
    assert model.calls == [(SOURCES, SEARCH)] * 2
    for name in ("bleu", "chrf"):
        score = getattr(evaluation, name)(partly, REFERENCES).score
        assert 0 < score < 100
        np.testing.assert_allclose(history[f"val_{name}"], [100, score])


@pytest.mark.once("torch")
def test_letter_case():
    lowercase = [text.lower() for text in FIRST]
    model = Translator([lowercase, lowercase])
    assert model.learn(quality())["val_bleu"] == [0.0]
    ignoring = model.learn(quality(lowercase=True))
    np.testing.assert_allclose(ignoring["val_bleu"] + ignoring["val_chrf"], [100, 100])


@pytest.mark.once("torch")
def test_other_metrics():
    history = Translator([["A", *FIRST[1:]]]).learn(quality(metrics=["exact_match"]))
    assert history["val_exact_match"] == [pytest.approx(100 * 4 / 5)]
    assert "val_bleu" not in history
    for metrics in ("bleu", ["blue"], []):
        with pytest.raises(ValueError, match="`metrics` must be a list of names of"):
            quality(metrics=metrics)


@pytest.mark.once("torch")
def test_translation_after_every_second_epoch():
    model = Translator([FIRST, FIRST, FIRST])
    history = model.learn(quality(every=2), epochs=5)
    assert len(model.calls) == 3
    for name in ("val_bleu", "val_chrf"):
        np.testing.assert_allclose(history[name], [100, 100, np.nan, 100, np.nan])


@pytest.mark.once("torch")
def test_callbacks_of_keras_in_epochs_without_a_translation(tmp_path):
    worse = ["A B C D", *FIRST[:-1]]
    model = Translator([worse, FIRST, worse, worse])
    options = {"monitor": "val_bleu", "mode": "max"}
    best, each = (
        keras.callbacks.ModelCheckpoint(
            tmp_path / name, **options, save_best_only=only, save_weights_only=True
        )
        for name, only in (
            ("best-{epoch}-{val_bleu:.0f}.weights.h5", True),
            ("{epoch}-{val_bleu:.0f}.weights.h5", False),
        )
    )
    stop = keras.callbacks.EarlyStopping(**options, patience=4)
    log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    rate = keras.callbacks.ReduceLROnPlateau(**options, patience=9)
    callbacks = quality(every=2), best, each, stop, log, rate
    history = model.learn(*callbacks, epochs=9)
    assert len(history["loss"]) == 6
    assert stop.best_epoch == 1
    names = sorted(path.name.split(".")[0] for path in tmp_path.glob("best*.h5"))
    assert [name[:6] for name in names] == ["best-1", "best-2"]
    assert (tmp_path / "3-nan.weights.h5").exists()
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[0] == "epoch,loss,val_bleu,val_chrf"
    assert [row.endswith(",nan,nan") for row in rows[1:]] == 2 * [0] + 2 * [1, 0]


@pytest.mark.once("torch")
def test_samples_are_printed(capsys):
    model = Translator([FIRST, FIRST, FIRST])
    model.learn(quality(samples=2), verbose=2)
    shown = capsys.readouterr().out
    assert shown.count("source:") == 2
    expected = (
        "  source:    d c a b e\n  reference: D C A B E\n  model:     D C A B E\n"
    )
    assert expected in shown
    assert "val_bleu: 100.0000 - val_chrf: 100.0000" in shown
    model.learn(quality(), verbose=2)
    assert "source:" not in capsys.readouterr().out
    long = " ".join(["z" * 99, "y" * 99])
    model = Translator([[long, *FIRST[1:]]])
    model.learn(quality(samples=1), verbose=2)
    (line,) = re.findall("  model:     (.*)", capsys.readouterr().out)
    assert line == f"{long[:159]}…"


@pytest.mark.once("torch")
def test_a_model_without_tokenizers():
    model = Translator()
    model.source_tokenizer = None
    with pytest.raises(ValueError, match="The model must have tokenizers"):
        model.learn(quality())


@pytest.mark.once("torch")
def test_a_source_that_is_too_long():
    model = Translator()
    model.max_source_length = 5
    message = "`sources` must have .* `max_source_length=5` .*; received 6 in line 2"
    with pytest.raises(ValueError, match=message):
        model.learn(quality())
    assert not model.calls


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("abc", ["abc"]), "`sources` must be a list .* `sources='abc'`"),
        (([], []), r"`sources` must be a list .* `sources=\[\]`"),
        ((["a"], "A"), "`references` must be a list .* `references='A'`"),
        ((["a", "b"], ["A"]), "for each of the 2 sources; .*`len.references.=1`"),
        ((["a"], ["A"], BeamSearch(3, num_hypotheses=2)), "`num_hypotheses=2`"),
        ((["a"], ["A"], None, 0), "`every` must be an int .* `every=0`"),
        ((["a"], ["A"], None, 1.5), "`every` must be an int .* `every=1.5`"),
        ((["a"], ["A"], None, 1, False, -1), "`samples=-1`"),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        TranslationQuality(*arguments)


class CountingSeq2Seq(Seq2Seq):
    """Counts how often its search is traced; stores the weights of each translation."""

    searches = 0

    def start_decoding(self, *arguments, **options):
        self.searches += 1
        return super().start_decoding(*arguments, **options)

    def generate(self, *arguments, **options):
        self.generated_with.append([w.numpy() for w in self.trainable_weights])
        return super().generate(*arguments, **options)


@pytest.fixture
def model():
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    model = CountingSeq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=11,
        num_heads=2,
        source_tokenizer=WordTokenizer([*special, *"abcde"]),
        target_tokenizer=WordTokenizer([*special, *"ABCDE"]),
        max_target_length=6,
    )
    model.generated_with = []
    return model


def train(model, *callbacks):
    source, target = model.source_tokenizer, model.target_tokenizer
    rows = target.tokenize(FIRST, add_start=True, add_end=True).to_tensor().numpy()
    inputs = {
        "encoder_token_ids": source.tokenize(SOURCES, add_end=True).to_tensor().numpy(),
        "decoder_token_ids": rows[:, :-1],
    }
    arguments = {"batch_size": 5, "epochs": 3, "verbose": 0, "callbacks": callbacks}
    return model.fit(inputs, rows[:, 1:], **arguments).history


@pytest.mark.slow
def test_generates_with_the_current_weights(model):
    model.compile(keras.optimizers.Adam(0.1), LabelSmoothedCrossEntropy())
    history = train(model, quality(search=SEARCH))
    searches = model.searches
    translations = model.generate(SOURCES, search=SEARCH)
    for name in ("bleu", "chrf"):
        score = getattr(evaluation, name)(translations, REFERENCES).score
        np.testing.assert_allclose(history[f"val_{name}"][-1], score)
    assert len(set(history["val_chrf"])) > 1
    first, *_, last, afterwards = model.generated_with
    assert any((a != b).any() for a, b in zip(first, last, strict=True))
    for a, b in zip(last, afterwards, strict=True):
        np.testing.assert_array_equal(a, b)
    if keras.backend.backend() != "torch":  # PyTorch does not trace.
        assert (searches, model.searches) == (1, 1)


@pytest.mark.once("torch")
def test_generates_with_moving_averages(model):
    """With this momentum they do not change after the first update."""
    optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=1.0)
    model.compile(optimizer, LabelSmoothedCrossEntropy())
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    losses = train(model, swap, quality(search=SEARCH))["loss"]
    assert losses[2] < losses[1] < losses[0]
    first, *others = model.generated_with
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    assert len(others) == 2

"""Outputs that a maximum length has cut: the default limit, and what says so."""

import io
import warnings

import numpy as np
import pytest

from keras_transformer import (
    BeamSearch,
    CausalLM,
    CharacterTokenizer,
    GreedySearch,
    RelativeLength,
    Sampling,
    Seq2Seq,
    parallel_dataset,
)
from keras_transformer.export.saved_model import writer
from keras_transformer.file_translation import (
    translate_file,
    translate_stream,
)
from keras_transformer.training import LabelSmoothedCrossEntropy, TranslationQuality

pytestmark = pytest.mark.once("torch")
SIZES = {"num_layers": 1, "hidden_dim": 4, "intermediate_dim": 4, "num_heads": 1}
TOKENIZER = CharacterTokenizer.train(lines=["abc "])
MESSAGE = r"^2 of 3 outputs have reached the maximum length.*`max_length`"


def seq2seq(**options):
    """A model that predicts all tokens with the same probability."""
    model = Seq2Seq(
        **SIZES, source_tokenizer=TOKENIZER, dropout=0.0, output_bias=True, **options
    )
    model.set_weights([np.zeros(w.shape) for w in model.get_weights()])
    return model


def with_logits(model, logits):
    """Makes a model predict the same logits at every position."""
    bias = next(w for w in model.weights if w.shape == (len(logits),))
    bias.assign(logits)
    return model


NEVER = [0.0, 0.0, 0.0, -9.0, 5.0, 0.0, 0.0, 0.0]
ALWAYS = [0.0, 0.0, 0.0, 9.0, 5.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("search", "count"),
    [(GreedySearch(), 1), (BeamSearch(2, num_hypotheses=2), 2), (Sampling(2), 2)],
)
def test_results_say_which_hypotheses_are_truncated(search, count):
    rows = [[4, 3], [4, 5, 6, 3]]
    model = with_logits(seq2seq(), NEVER)
    result = model.generate(rows, search, max_length=RelativeLength(1, 2), seed=1)
    assert result.truncated.shape == result.scores.shape == (2, count)
    assert result.truncated.tolist() == [[True] * count] * 2
    model = with_logits(seq2seq(), ALWAYS)
    result = model.generate(rows, GreedySearch(), max_length=4)
    assert result.truncated.tolist() == [[False], [False]]
    assert result.lengths.tolist() == [[1], [1]]


def test_a_language_model_is_truncated_without_an_end_token():
    sizes = {**SIZES, "vocabulary_size": 8, "dropout": 0.0, "output_bias": True}
    model = CausalLM(**sizes)
    model.set_weights([np.zeros(w.shape) for w in model.get_weights()])
    for logits, truncated in ((NEVER, True), (ALWAYS, False)):
        result = with_logits(model, logits).generate(
            [[4, 5]], GreedySearch(), max_length=1
        )
        assert result.lengths.tolist() == [[1]]
        assert result.truncated.tolist() == [[truncated]]


def test_phrases_and_empty_texts():
    model = with_logits(seq2seq(), NEVER)
    arguments = {"max_length": 6, "constraints": [["b"], [], []]}
    texts, truncated = model.generate(
        ["a", "c", ""], BeamSearch(2), return_truncated=True, **arguments
    )
    assert "b" in texts[0] and truncated.tolist() == [True, True, False]


# The default limit.


@pytest.mark.once("jax")  # PyTorch does not compile the limit
def test_the_default_limit_is_that_of_the_data():
    pairs = [("a", "c"), ("ab", "abcabcabcabc")] * 600
    data = parallel_dataset(
        pairs=pairs, source_tokenizer=TOKENIZER, target_tokenizer=TOKENIZER
    )
    assert data.output_length_ratio == 6.5  # 1.5 × 13 / 3 tokens
    model = seq2seq()
    model.compile("sgd", LabelSmoothedCrossEntropy())
    assert model.max_output_lengths(20) == 70
    source = [[4] * 19 + [3]]
    model.generate(source, GreedySearch())  # compiled with the old limit
    model.fit(data.dataset, shuffle=False, verbose=0, steps_per_epoch=1)
    assert model.output_length_ratio == 6.5
    assert (model.max_output_lengths(20), model.max_output_lengths(4)) == (130, 54)
    with_logits(model, NEVER)
    assert model.generate(source, GreedySearch()).lengths.item() == 130
    again = Seq2Seq.from_config(model.get_config())
    assert again.max_output_lengths(20) == 130
    few = parallel_dataset(
        pairs=[("abc", "a")], source_tokenizer=TOKENIZER, target_tokenizer=TOKENIZER
    )
    assert few.output_length_ratio == 1
    model.fit(few.dataset, shuffle=False, verbose=0)
    assert model.output_length_ratio == 6.5


def test_the_default_limit_of_answers():
    sizes = {**SIZES, "tokenizer": TOKENIZER, "output_length_ratio": 4.0}
    model = CausalLM(**sizes)
    assert (model.max_output_lengths(10), model.max_output_lengths(100)) == (256, 400)
    assert CausalLM.from_config(model.get_config()).output_length_ratio == 4
    with pytest.raises(ValueError, match="`output_length_ratio` must be a finite"):
        CausalLM(**{**sizes, "output_length_ratio": 0.5})
    with pytest.raises(ValueError, match="received `output_length_ratio=nan`"):
        seq2seq(output_length_ratio=float("nan"))


def test_the_model_card_says_the_default_limit():
    describe = writer._default_length
    assert describe(seq2seq()) == "50 more than the source"
    longer = "50 more than the source, or 2.5 times the source if this is more"
    assert describe(seq2seq(output_length_ratio=2.5)) == longer
    assert describe(CausalLM(**SIZES, tokenizer=TOKENIZER)) == "256"


# What says so.


class Cutting(Seq2Seq):
    """Truncates all outputs but that of `"a"`."""

    def generate(self, inputs, *args, **options):
        texts, *others = super().generate(inputs, *args, **options)
        truncated = np.array([text != "a" for text in inputs])
        return (texts, *others[:-1], truncated)


def cutting():
    return Cutting(**SIZES, source_tokenizer=TOKENIZER, target_tokenizer=TOKENIZER)


def test_generate_warns_without_a_limit_of_the_user():
    model = with_logits(seq2seq(), NEVER)
    with pytest.warns(UserWarning, match="^1 of 2 outputs .*`output_length_ratio`"):
        model.generate(["a", ""])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*the maximum length")
        model.generate(["a", ""], max_length=3)
        model.generate(["a", ""], return_truncated=True)


def test_files_and_pipes(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("a\nb\nc\n")
    with pytest.warns(UserWarning, match=MESSAGE):
        translate_file(cutting(), source, target, max_length=3, verbose=0)
    with pytest.warns(UserWarning, match=MESSAGE):
        translate_stream(cutting(), source, io.BytesIO(), max_length=3)


def test_validation():
    model = cutting()
    model.compile("sgd", LabelSmoothedCrossEntropy())
    data = parallel_dataset(
        pairs=[("a", "b")], source_tokenizer=TOKENIZER, target_tokenizer=TOKENIZER
    )
    quality = TranslationQuality(["a", "b", "c"], ["a", "b", "c"], samples=0)
    with pytest.warns(UserWarning, match="^2 of 3 outputs .*`output_length_ratio`"):
        model.fit(data.dataset, callbacks=[quality], shuffle=False, verbose=0)

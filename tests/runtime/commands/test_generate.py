"""`generate`, and `evaluate`, `translate` and `inspect` of a language model."""

import io
import re
import warnings

import numpy as np
import pytest
from error_box import unwrapped
from typer.testing import CliRunner

from keras_transformer import BeamSearch, CausalLM, Sampling, Seq2Seq
from keras_transformer.inference.perplexity import TextScores
from keras_transformer.recipe import LanguageModelFigures, Recipe
from keras_transformer.recipe.loading import load_trained_model
from keras_transformer.text import CharacterTokenizer
from keras_transformer_runtime.command import make_app

pytestmark = pytest.mark.once("torch")

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
LETTERS = CharacterTokenizer.train(lines=["abcdeé\n"])


@pytest.fixture(scope="module")
def model():
    model = CausalLM(**SIZES, tokenizer=LETTERS, max_length=12)
    rng = np.random.default_rng(1)  # so that the outputs differ
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module", autouse=True)
def folder(model, tmp_path_factory):
    """Saves the models. The commands use the one that has compiled its searches."""
    folder = tmp_path_factory.mktemp("models")
    model.save(folder / "lm.keras")
    translator = Seq2Seq(**SIZES, source_tokenizer=LETTERS, target_tokenizer=LETTERS)
    translator.save(folder / "translator.keras")

    def load(path):
        return model if path == folder / "lm.keras" else load_trained_model(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_transformer.recipe.loading.load_trained_model", load)
        yield folder


@pytest.fixture
def lm(folder):
    return folder / "lm.keras"


def run(*arguments, pipe=None):
    arguments = [str(part) for part in arguments]
    return CliRunner().invoke(make_app(), arguments, input=pipe)


def output(*arguments, pipe=None):
    result = run(*arguments, pipe=pipe)
    assert result.exit_code == 0, result.output
    return result.stdout


def written(*texts):
    """What the command writes: an empty line follows a text of several lines."""
    return "".join(f"{text}\n\n" if "\n" in text else f"{text}\n" for text in texts)


def test_a_prompt_is_sampled(model, lm):
    found = output("generate", lm, "--prompt", "abc", "--seed", 5, "--max-length", 7)
    search = Sampling(top_p=0.9)
    text = model.generate("abc", search, max_length=7, seed=5, include_prompt=True)
    assert found == written(text) and text.startswith("abc")


def test_options_of_sampling(model, lm):
    options = ["--num-hypotheses", 3, "--temperature", 0.5, "--top-p", 1, "--seed", 2]
    found = output("generate", lm, "--prompt", "", *options, "--no-include-prompt")
    search = Sampling(num_samples=3, temperature=0.5)
    texts = model.generate("", search, seed=2)
    assert found == written(*texts) and len(texts) == 3


def test_lines_of_a_pipe_are_prompts(model, lm):
    options = ["--num-beams", 2, "--length-penalty", 1, "--max-length", 5]
    found = output("generate", lm, *options, pipe="ab\n\ndeé")
    search = BeamSearch(2, length_penalty=1.0)
    texts = model.generate(["ab", "", "deé"], search, max_length=5, include_prompt=True)
    assert found == written(*texts)


def test_several_texts_of_a_beam_search(model, lm):
    options = ["--num-beams", 4, "--num-hypotheses", 2, "--max-length", 5]
    found = output("generate", lm, "--prompt", "ab", *options)
    search = BeamSearch(4, num_hypotheses=2)
    texts = model.generate("ab", search, max_length=5, include_prompt=True)
    assert found == written(*texts)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def type_prompts(path, *options):
    make_app()(["generate", str(path), *options], standalone_mode=False)


def test_typed_prompts_are_streamed(model, lm, monkeypatch, capsys):
    pieces = []
    stream = model.stream

    def recorded(*args, **options):
        for piece in stream(*args, **options):
            pieces.append(piece)
            yield piece

    monkeypatch.setattr(model, "stream", recorded)
    screen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal("ab\n\n"))
    monkeypatch.setattr("sys.stdout", screen)
    type_prompts(lm, "--max-length", "6", "--seed", "3")
    options = {"max_length": 6, "seed": 3, "include_prompt": True}
    texts = [
        model.generate(text, Sampling(top_p=0.9), **options) for text in ("ab", "")
    ]
    assert screen.getvalue() == "> ".join(["", *map(written, texts), ""])
    assert len(pieces) > 2 and "ab" + "".join(pieces) == "".join(texts)
    assert "Ctrl-D ends" in capsys.readouterr().err


def test_an_error_or_ctrl_c_ends_one_typed_text(model, lm, monkeypatch, capsys):
    stream = model.stream

    def interrupted(prompt, *_, **options):
        yield from stream(prompt, **options)
        if prompt == "b":
            raise KeyboardInterrupt

    monkeypatch.setattr(model, "stream", interrupted)
    monkeypatch.setattr("sys.stdin", Terminal(f"{'ab' * 9}\nb\na\n"))
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    type_prompts(lm, "--max-length", "3", "--seed", "3")
    options = {"max_length": 3, "seed": 3, "include_prompt": True}
    stopped, text = model.generate(["b", "a"], Sampling(top_p=0.9), **options)
    shown = ["", "", f"{stopped}\n", written(text), ""]
    assert screen.getvalue() == "> ".join(shown)
    message = "error: A prompt must have at most 12 tokens, the context of the mod"
    assert message in capsys.readouterr().err


def failure(*arguments, pipe=None):
    result = run(*arguments, pipe=pipe)
    assert result.exit_code == 1
    return str(result.exception)


def test_errors(lm, folder):
    both = ["--prompt", "a", "--num-beams", 2, "--top-p", 0.5]
    assert "`top_p` is for sampling; received `top_p=0.5`" in failure(
        "generate", lm, *both
    )
    assert "`top_p` must be a finite number above 0" in failure(
        "generate", lm, "--top-p", 0
    )
    message = "translates texts. Use the command translate."
    assert message in failure("generate", folder / "translator.keras", "--prompt", "a")
    message = "at most 12 tokens, .*; line 2 of the standard input has 13"
    assert re.search(message, failure("generate", lm, pipe=f"a\n{'ab' * 6}a\n"))
    result = run("generate", folder / "none.keras")
    assert result.exit_code == 2 and "does not exist" in unwrapped(result.output)


@pytest.mark.parametrize("prompt, room", [("ab", 11), ("", 12)])
def test_a_length_beyond_the_context(prompt, room, lm):
    options = ["--prompt", prompt, "--no-include-prompt", "--max-length"]
    with pytest.warns(UserWarning, match=f"`max_length=50` is greater than {room}, th"):
        found = output("generate", lm, *options, 50)
    assert len(found.rstrip("\n")) <= room
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        output("generate", lm, *options, room)


def test_translate_continues_each_line(model, lm):
    found = output("translate", lm, "--quiet", pipe="ab\nd\n")
    texts = model.generate(["ab", "d"], BeamSearch())
    assert found.splitlines() == [text.replace("\n", " ") for text in texts]


# Perplexities.

TEXT = "abc\ndeé\n\ncab\nbead\n"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.mark.parametrize(
    "documents, texts",
    [
        ("file", [TEXT]),
        ("none", [TEXT]),
        ("line", ["abc", "deé", "cab", "bead"]),
        ("paragraph", ["abc\ndeé\n", "cab\nbead\n"]),
    ],
)
def test_perplexities_of_documents(model, lm, text, documents, texts):
    options = [] if documents == "file" else ["--documents", documents]
    lines = output("evaluate", lm, text, *options, "--stride", 5).splitlines()
    result = model.score_texts(texts, stride=5)
    characters = sum(map(len, texts)) - len(texts)  # without the first tokens
    assert [line.split()[:3] for line in lines[:4]] == [
        *(["perplexity", "per", unit] for unit in ("token", "character", "byte")),
        ["nats", "per", "character"],
    ]
    nats = -result.scores.sum() / characters
    assert float(lines[0].split()[-1]) == pytest.approx(result.perplexity, rel=1e-3)
    assert float(lines[3].split()[-1]) == pytest.approx(nats, abs=1e-4)
    assert lines[4] == (
        f"{characters} tokens of {characters} characters, windows of 12 tokens, "
        "stride 5"
    )


def test_perplexity_of_answers(model, lm, tmp_path):
    (tmp_path / "prompts").write_text("ab\nde\n")
    (tmp_path / "answers").write_text("cab\ne\n")
    lines = output("evaluate", lm, tmp_path / "prompts", tmp_path / "answers")
    result = model.score(["ab", "de"], ["cab", "e"])
    assert float(lines.split()[3]) == pytest.approx(result.perplexity, rel=1e-3)
    assert "6 tokens of 4 characters, 2 answers" in lines


def test_options_of_the_other_kind_of_model(lm, folder, text):
    message = "`num_beams` is for models that translate; received `num_beams=3`"
    assert message in failure("evaluate", lm, text, "--num-beams", 3)
    message = "`too_long` is for models that translate; received `too_long=empty`"
    assert message in failure("evaluate", lm, text, "--too-long", "empty")
    message = "`bleu_tokenize` is for models that translate"
    assert message in failure("evaluate", lm, text, "--bleu-tokenize", "char")
    message = "`stride` is for running text; received `stride=3` and the answers"
    assert message in failure("evaluate", lm, text, text, "--stride", 3)
    assert run("evaluate", lm, text, "--documents", "word").exit_code == 2
    translator = folder / "translator.keras"
    message = "`documents` is for language models; received `documents=line`"
    assert message in failure("evaluate", translator, text, "--documents", "line")
    message = "`stride` is for language models; received `stride=3`"
    assert message in failure("evaluate", translator, text, text, "--stride", 3)
    result = run("evaluate", translator, text)
    assert result.exit_code == 2
    assert "translator.keras requires reference translations" in unwrapped(
        result.output
    )


def test_the_folder_of_a_run(model, text, tmp_path, monkeypatch):
    """`evaluate` finds the documents of the run, and `inspect` its figures."""
    model.save(tmp_path / "model.keras")
    options = {"model": "causal", "documents": "line", "valid": [str(text)]}
    planned = {
        **{"epochs": 1, "dropout": 0.1, "tokens_per_batch": 64, "average": 1},
        **{"learning_rate": 0.1, "warmup_steps": 5, "cooldown": 0, "save_every": 5},
    }
    recipe = Recipe(train=[str(text)], output=str(tmp_path), **options, **planned)
    (tmp_path / "options.toml").write_text(recipe.to_toml())
    scores = TextScores(nats=20.0, texts=4, tokens=10, characters=9, bytes=10)
    LanguageModelFigures(scores, "loss", "epoch 1, the last", {}).write(
        tmp_path / "figures.json"
    )
    assert "9 tokens of 9 characters" in output("evaluate", tmp_path, text)
    facts = output("inspect", tmp_path)
    assert "the validation text, 9 characters" in facts
    assert "nats per character         2.2222" in facts
    assert f"keras-transformer generate {tmp_path} --prompt TEXT" in facts
    assert "translate" not in facts and "--num-beams" not in facts


def test_a_saved_model_samples_unless_beams_are_given(lm, tmp_path, monkeypatch):
    found = []

    def export(self, folder, search, **options):
        found.append((search, options["format"]))

    monkeypatch.setattr(CausalLM, "export", export)
    output("export", lm, tmp_path / "1")
    output("export", lm, tmp_path / "2", "--num-beams", 3)
    assert found == [
        (Sampling(top_p=0.9), "saved_model"),
        (BeamSearch(3), "saved_model"),
    ]

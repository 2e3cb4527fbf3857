import gzip
import io
import json
import os
import sys

import numpy as np
import pytest

from keras_transformer import (
    BeamSearch,
    GreedySearch,
    PhraseDictionary,
    RelativeLength,
    Sampling,
    Seq2Seq,
    translate_file,
)
from keras_transformer.file_translation import translate_stream
from keras_transformer.text import CharacterTokenizer
from keras_transformer_runtime.file_translation.translation import written_at_once

pytestmark = pytest.mark.once("torch")

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SOURCE = CharacterTokenizer([*SPECIAL, *"abcdef"])
TARGET = CharacterTokenizer([*SPECIAL, *"UVWXYZÄ\n"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
GREEDY, N_BEST = GreedySearch(), BeamSearch(3, num_hypotheses=2)
LINES = ["abc", "", "f", "deadbee", "fab", "c", "bead", "ace", "d", "cafe", "", "bed"]
SHOUTED = ["ABC", "", "F", "DEADBEE", "F AB", "C", "BEAD", "ACE", "D", "CAF E", ""]
SHOUTED += ["BED", ""]  # the file ends with the end of a line


class Killed(Exception):
    pass


class Shouter:
    """Translates into capitals, and more than one line after an `f`.

    With `GREEDY` and four texts a batch, three calls translate `LINES`.
    """

    source_tokenizer = SOURCE
    max_source_length = 9

    def __init__(self, calls=None, weight=1.0):
        self.calls = calls  # after so many it is killed
        self.asked = []
        self.weights = [np.full(3, weight, "float32")]

    def get_config(self):
        return {"name": f"shouter_{id(self)}", "max_source_length": 9}

    def generate(self, texts, search, return_scores, **options):
        if len(self.asked) == self.calls:
            raise Killed
        self.asked.append(texts)
        best = [text.upper().replace("F", "F\r\n") for text in texts]
        scores = -np.array([[len(text), np.inf] for text in texts], "float32")
        truncated = np.array([[text == "abc", False] for text in texts])
        if search.num_hypotheses == 1:
            return best, scores[:, 0], truncated[:, 0]
        return [[text, ""] for text in best], scores, truncated


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path


def translate(model, source="source", target="target", search=GREEDY, **options):
    options = {"batch_size": 4, "window": 5, "verbose": 0, **options}
    translate_file(model, source, target, search, **options)


def translate_and_kill(calls, **options):
    model = Shouter(calls)
    with pytest.raises(Killed):
        translate(model, **options)
    return model


def read(folder, name="target"):
    return (folder / name).read_text().split("\n")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# What is written.


@pytest.mark.parametrize("window", [1, 5, 12])
def test_one_line_for_one_line(folder, window):
    translate(Shouter(), window=window)
    assert read(folder) == SHOUTED
    translate(Shouter(), window=window, search=N_BEST, overwrite=True)
    assert read(folder) == SHOUTED
    assert names(folder) == ["source", "target"]


def test_compressed_files(folder):
    (folder / "source.gz").write_bytes(gzip.compress("\r\n".join(LINES).encode()))
    translate(Shouter(), "source.gz", "target.gz")
    text = gzip.decompress((folder / "target.gz").read_bytes()).decode()
    assert text.split("\n") == SHOUTED


def test_batches_are_full_and_of_like_length(folder):
    (folder / "source").write_text("\n".join(["a", "abcd", "", "ab", "abc"] * 3))
    model = Shouter()
    translate(model, window=15, batch_size=5)
    assert model.asked == [["a"] * 3 + ["ab"] * 2, ["ab"] + ["abc"] * 3 + ["abcd"] * 3]


def test_lines_without_words_are_left_empty(folder):
    blank = CharacterTokenizer([*SPECIAL, *"ab \t"])
    (folder / "source").write_text("ab\n \n \t \n            \nb a\n")
    model = Shouter()
    model.source_tokenizer = blank
    translate(model)
    assert read(folder) == ["AB", "", "", "", "B A", ""]
    assert model.asked == [["ab", "b a"]]


def test_n_best_lines(folder):
    (folder / "source").write_text("ab\n\ncafe")
    expected = ["0 ||| AB ||| -2.000000", "1 |||  ||| 0.000000"]
    expected += ["2 ||| CAF E ||| -4.000000", ""]
    for search in (N_BEST, GREEDY):
        translate(Shouter(), search=search, window=2, n_best=True, overwrite=True)
        assert read(folder) == expected


@pytest.fixture(scope="module")
def model():
    model = Seq2Seq(
        **SIZES,
        normalize_first=True,
        max_source_length=9,
        max_target_length=5,
        source_tokenizer=SOURCE,
        target_tokenizer=TARGET,
    )
    rng = np.random.default_rng(6)  # the outputs differ, some have several lines
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


def test_options_of_generate(model, folder):
    search, options = Sampling(), {"max_length": 4, "min_length": 3, "seed": 5}
    translate(model, search=search, **options)
    texts = model.generate(LINES, search, **options)
    texts = [text.removesuffix("\n").replace("\n", " ") for text in texts]
    assert len({*texts}) > 3
    assert read(folder) == [*texts, ""]


# A run that is killed.


@pytest.mark.parametrize(
    "target, calls", [("target", 0), ("target", 1), ("target.gz", 2)]
)
def test_a_killed_run_resumes(folder, calls, target):
    whole, second = Shouter(), Shouter()
    translate(whole, target=target)
    expected = (folder / target).read_bytes()
    (folder / target).unlink()
    first = translate_and_kill(calls, target=target)
    kept = [target + ".unfinished", target + ".unfinished.json"]
    assert names(folder) == ["source", *(kept if calls else [])]
    if calls:  # and what a killed process wrote of a window
        with open(f"{target}.unfinished", "ab") as file:
            file.write(b"half a li")
    translate(second, target=target)
    assert (folder / target).read_bytes() == expected
    assert names(folder) == ["source", target]
    assert first.asked + second.asked == whole.asked


def test_records_of_finished_work_are_ignored(folder):
    translate_and_kill(2)
    record = (folder / "target.unfinished.json").read_bytes()
    translate(Shouter())
    (folder / "target").unlink()
    (folder / "target.unfinished.json").write_bytes(record)
    translate_and_kill(0)
    assert names(folder) == ["source"]
    (folder / "target.unfinished").write_text("of a first window, killed half-way")
    translate(Shouter())
    assert read(folder) == SHOUTED


def test_a_stop_before_the_file_is_renamed(folder, monkeypatch):
    def replace(source, target):
        if target.name == "target":
            raise Killed
        usual(source, target)

    usual = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Killed):
            translate(Shouter())
    translate(Shouter(calls=0))
    assert read(folder) == SHOUTED


def other_source(folder):
    (folder / "source").write_text("".join(f"{line}\n" for line in LINES[::-1]))
    return {}


@pytest.mark.parametrize(
    "name, change",
    [
        ("source", other_source),
        ("model", lambda folder: {"model": Shouter(weight=2.0)}),
        ("search", lambda folder: {"search": N_BEST}),
        ("max_length", lambda folder: {"max_length": RelativeLength(2)}),
        ("min_length", lambda folder: {"min_length": 2}),
        ("seed", lambda folder: {"seed": 2}),
        ("n_best", lambda folder: {"n_best": True}),
    ],
)
def test_other_settings_are_not_mixed(folder, name, change):
    translate_and_kill(1)
    arguments = {"model": Shouter(), **change(folder)}
    message = f"`{name}` must be that of the unfinished work in `target.unfinished`, "
    with pytest.raises(ValueError, match=f"{message}`{name}=.*; received `{name}="):
        translate(**arguments)
    translate(**arguments, overwrite=True)
    begun_anew = read(folder)
    translate(**arguments, overwrite=True)
    assert read(folder) == begun_anew
    assert names(folder) == ["source", "target"]


def test_two_processes_cannot_write_one_file(folder):
    class Starter(Shouter):
        def generate(self, *args, **options):
            with pytest.raises(ValueError, match="`target` must not be written by"):
                translate(Shouter())
            return super().generate(*args, **options)

    translate(Starter())
    assert read(folder) == SHOUTED


def test_a_model_that_is_built_again_resumes(folder):
    for calls in (1, 0):
        model = Seq2Seq(**SIZES, source_tokenizer=SOURCE, max_source_length=9)
        model.generate = Shouter(calls).generate
        for weight in model.weights:
            weight.assign(np.ones(weight.shape))
        with pytest.raises(Killed):
            translate(model)
        assert (folder / "target.unfinished.json").exists()


RECORDED = {
    "lines": [10**12, 9, 11, -1, 2.0, "5", None, True],
    "size": [0, 3, 10**15, -1, "9", 10**400],
    "left_empty": [11, -1, "0"],
    "settings": [{}, [], None, {"search": 1}],
    "more": [1],
}


@pytest.mark.parametrize("target", ["target.gz", "n_best"])
def test_a_record_that_was_changed(folder, target):
    # One line is written for each line of the source, so any other number is wrong.
    options = {"search": N_BEST, "n_best": True} if target == "n_best" else {}
    translate_and_kill(2, target=target, **options)
    record = folder / f"{target}.unfinished.json"
    work = folder / f"{target}.unfinished"
    good, written = json.loads(record.read_text()), work.read_bytes()
    assert good["lines"] == 10
    changed = [{**good, k: value} for k, values in RECORDED.items() for value in values]
    deep = '{"lines": ' + "[" * 100_000
    for content in [*map(json.dumps, changed), deep, "[]", "5"]:
        record.write_text(content)
        with pytest.raises(
            ValueError, match=rf"{target}.unfinished` must|must be that"
        ):
            translate(Shouter(), target=target, **options)
        assert work.read_bytes() == written
    work.write_bytes(written[:-3])
    with pytest.raises(ValueError, match="unfinished` must agree .* Start again"):
        translate(Shouter(), target=target, **options)
    work.write_bytes(written)
    record.write_text(json.dumps(good))
    translate(Shouter(), target=target, **options)
    assert not record.exists()


def test_unfinished_work_is_no_link_or_pipe(folder):
    (folder / "mine").write_text("mine")
    (folder / "target.unfinished").symlink_to(folder / "mine")
    with pytest.raises(ValueError, match="target.unfinished` must be a file"):
        translate(Shouter())
    (folder / "target.unfinished").unlink()
    (folder / "target.unfinished.json").symlink_to(folder / "mine")
    translate_and_kill(2)
    assert not (folder / "target.unfinished.json").is_symlink()
    assert (folder / "mine").read_text() == "mine"
    for end in (".json", ""):
        path = folder / f"target.unfinished{end}"
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(ValueError, match="target.unfinished` must"):
            translate(Shouter())


def test_the_permissions_of_a_target_stay(folder):
    (folder / "target").touch()
    (folder / "target").chmod(0o600)
    translate_and_kill(2, overwrite=True)
    assert (folder / "target.unfinished").stat().st_mode & 0o777 == 0o600
    translate(Shouter(), overwrite=True)
    assert (folder / "target").stat().st_mode & 0o777 == 0o600
    assert read(folder) == SHOUTED


# Lines that are too long.


def test_a_line_that_is_too_long(folder):
    (folder / "source").write_text("\n".join([*LINES, "abcdefabc", "a"]))
    message = (
        r"at most `max_source_length=9` tokens a line; received 10 tokens in line 13 "
        r"of `source`\. Shorten or split it, .*`too_long=\"empty\"`"
    )
    with pytest.raises(ValueError, match=message):
        translate(Shouter(calls=0))
    assert names(folder) == ["source"]


def test_a_line_that_is_too_long_is_left_empty(folder):
    too_long = "abcdefabc"
    (folder / "source").write_text("\n".join([too_long, *LINES, too_long]))
    translate_and_kill(1, too_long="empty")
    message = "Empty .* in `source`, .* more than `max_source_length=9` tokens: 2"
    with pytest.warns(UserWarning, match=message):
        translate(Shouter(), too_long="empty")
    assert read(folder) == ["", *SHOUTED[:-1], "", ""]


# Pipes.


def stream(model, source, search=GREEDY, **options):
    target = io.BytesIO()
    if isinstance(source, list):
        source = io.BytesIO("\n".join(source).encode())
    try:
        translate_stream(model, source, target, search, batch_size=4, **options)
    except (ValueError, Killed) as error:
        error.written = target.getvalue().decode()
        raise
    return target.getvalue().decode().split("\n")


def test_a_pipe_gives_the_lines_of_a_file():
    for source, window in ((LINES, 1), ("source", 5), (LINES, 100)):
        assert stream(Shouter(), source, window=window) == SHOUTED
    assert stream(Shouter(calls=0), []) == [""]


def test_a_translation_is_written_before_the_next_line_arrives():
    class Dialogue(io.BytesIO):
        said = [b"abc\n", b"de\n"]

        def read1(self, size):
            assert len(self.getvalue().splitlines()) == 2 - len(self.said)
            return self.said.pop(0) if self.said else b""

    both = Dialogue()
    translate_stream(Shouter(), both, both, GREEDY)
    assert both.getvalue() == b"ABC\nDE\n"


def test_a_line_of_a_pipe_that_is_too_long():
    too_long = [*LINES, "abcdefabc", "a"]
    message = r"10 tokens in line 13 of `standard input`\. .*`too_long=\"empty\"`"
    with pytest.raises(ValueError, match=message) as found:
        stream(Shouter(), too_long, window=5)
    assert found.value.written.split("\n") == [*SHOUTED[:10], ""]
    message = "Empty .* in `standard input`, .*`max_source_length=9` tokens: 1"
    with pytest.warns(UserWarning, match=message):
        lines = stream(Shouter(), too_long, too_long="empty")
    assert lines == [*SHOUTED[:-1], "", "A", ""]


def test_a_file_is_checked_before_anything_is_written(folder):
    (folder / "source").write_text("\n".join([*LINES, "abcdefabc"]))
    with pytest.raises(ValueError, match="10 tokens in line 13 of `source`") as found:
        stream(Shouter(calls=0), "source", window=5)
    assert not found.value.written


def test_arguments_of_a_stream():
    for options in ({"window": 0}, {"too_long": "cut"}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
            stream(Shouter(calls=0), LINES, **options)
    with pytest.raises(ValueError, match="`model` must have tokenizers"):
        stream(Seq2Seq(**SIZES, vocabulary_size=11), LINES)


@pytest.mark.parametrize("name", ["target", "target.gz"])
def test_a_file_that_is_written_at_once(folder, name):
    with pytest.raises(Killed), written_at_once(name, None, False) as file:
        file.write(b"abc\n")
        raise Killed
    assert names(folder) == ["source"]
    with written_at_once(name, "source", False) as file:
        file.write(b"abc\n")
        assert not (folder / name).exists()
    content = (folder / name).read_bytes()
    assert (gzip.decompress(content) if name.endswith("gz") else content) == b"abc\n"
    with (
        pytest.raises(FileExistsError, match="`target` must not exist"),
        written_at_once(name, None, False),
    ):
        pass
    with (
        pytest.raises(ValueError, match="must not be the file `source`"),
        written_at_once("source", "source", True),
    ):
        pass
    with written_at_once(name, None, True) as file:
        file.write(b"")
    assert (folder / name).read_bytes() != content


# Progress.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_counts_sentences(folder, monkeypatch, capsys):
    translate(Shouter(), verbose=1)
    translate_stream(Shouter(), "source", io.BytesIO(), GREEDY, verbose=1)
    assert capsys.readouterr().err == ""  # no terminal
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    translate(Shouter(), overwrite=True)
    assert terminal.getvalue() == ""
    translate_and_kill(1, overwrite=True)
    translate(Shouter(), overwrite=True, verbose=1)
    bar = terminal.getvalue()
    assert "Translating" in bar and "100 %" in bar and "12 sentences" in bar
    terminal.truncate(0)
    translate_stream(Shouter(), "source", io.BytesIO(), GREEDY, verbose=1)
    assert "12 sentences" in terminal.getvalue()


# Errors.


def test_an_existing_target(folder):
    (folder / "target").write_text("precious")
    with pytest.raises(FileExistsError, match="`target` must not exist; .*='target'"):
        translate(Shouter())
    assert read(folder) == ["precious"]
    translate(Shouter(), overwrite=True)
    assert read(folder) == SHOUTED


def test_the_source_is_not_replaced(folder):
    before = (folder / "source").read_bytes()
    (folder / "same").symlink_to(folder / "source")
    for target in ("source", "same"):
        with pytest.raises(
            ValueError, match="must not be the file `source`; .*`target='"
        ):
            translate(Shouter(), target=target, overwrite=True)
    assert (folder / "source").read_bytes() == before


def test_sources_that_cannot_be_read(folder):
    with pytest.raises(FileNotFoundError, match="missing"):
        translate(Shouter(), "missing")
    message = "`target` must be in a folder that exists; received `target=.*target'`"
    with pytest.raises(FileNotFoundError, match=message):
        translate(Shouter(), target="missing/target")
    (folder / "latin").write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(ValueError, match="valid UTF-8; line 3 of `latin` is not"):
        translate(Shouter(), "latin")
    (folder / "empty").touch()
    with pytest.raises(ValueError, match="`empty` is empty"):
        translate(Shouter(), "empty")
    whole = gzip.compress(b"abc\n" * 100)
    for content in (whole[:-9], whole[:12] + b"\0\0" + whole[14:], b"no gzip"):
        (folder / "damaged.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"be complete; `damaged\.gz` is damaged"):
            translate(Shouter(), "damaged.gz")


def test_arguments(monkeypatch):
    for name in ("batch_size", "window"):
        with pytest.raises(ValueError, match=f"`{name}` must be .*at least 1; .*=0`"):
            translate(Shouter(), **{name: 0})
    for name, value in {"max_length": 9.0, "min_length": -1, "seed": 2**31}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be .*`{name}={value}`"):
            translate(Shouter(), **{name: value})
    message = "`too_long` must be 'error' or 'empty'; received `too_long='cut'`"
    with pytest.raises(ValueError, match=message):
        translate(Shouter(), too_long="cut")
    with pytest.raises(ValueError, match="`workers` must be an int of at least 1"):
        translate(Shouter(), workers=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"`workers=2` requires .* \"ray\["):
        translate(Shouter(), workers=2)
    with pytest.raises(ValueError, match="`model` must have tokenizers"):
        translate(Seq2Seq(**SIZES, vocabulary_size=11))


class Constrained(Shouter):
    """Records the phrases of each text."""

    target_tokenizer = CharacterTokenizer.train(lines=["XYZ"])

    def __init__(self, calls=None):
        super().__init__(calls)
        self.phrases = {}

    def generate(self, texts, search, return_scores, constraints=None, **options):
        self.phrases |= dict(zip(texts, constraints or texts, strict=True))
        return super().generate(texts, search, return_scores, **options)


def test_a_dictionary():
    dictionary = PhraseDictionary({"abc": "XY", "f": "Z"})
    expected = {line: [] for line in LINES if line} | {"abc": ["XY"], "f": ["Z"]}
    model = Constrained()
    translate(model, dictionary=dictionary)
    assert model.phrases == expected
    model = Constrained()
    translate_stream(model, "source", io.BytesIO(), GREEDY, dictionary=dictionary)
    assert model.phrases == expected
    unknown = PhraseDictionary({"zzz": "W"})
    with pytest.raises(ValueError, match="`dictionary` must have .* others: 'W'"):
        translate_stream(model, "source", io.BytesIO(), GREEDY, dictionary=unknown)


def test_unfinished_work_with_another_dictionary():
    dictionary = PhraseDictionary({"zzz": "Z"})
    with pytest.raises(Killed):
        translate(Constrained(2), dictionary=dictionary)
    for other in (None, PhraseDictionary({"zzz": "Y"})):
        with pytest.raises(ValueError, match="dictionary"):
            translate(Constrained(), dictionary=other)
    translate(Constrained(), dictionary=PhraseDictionary({"zzz": "Z"}))

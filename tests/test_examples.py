"""Runs the examples at toy size."""

import argparse
import ast
import importlib.util
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import Seq2Seq

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(pattern, text):
    """The number in the one line that is as `pattern` says."""
    (number,) = re.findall(f"^{pattern}$", text, re.MULTILINE)
    return float(number)


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem
)
def test_help_names_every_option(path, capsys):
    with pytest.raises(SystemExit) as exit:
        load(path.stem).main(["--help"])
    assert exit.value.code == 0
    help = capsys.readouterr().out
    assert f"python examples/{path.name}" in help
    options = re.findall(r'add_argument\("(--[\w-]+)"', path.read_text("utf-8"))
    options += re.findall(r'add_argument\(\n *"(--[\w-]+)"', path.read_text("utf-8"))
    assert options
    assert not [option for option in options if option not in help]


# pronounce.py
def test_pronounce(tmp_path, monkeypatch, capsys):
    pronounce = load("pronounce")
    options = ["--limit", "300", "--epochs", "1"]
    folders = ["--output", str(tmp_path), "--saved-model", str(tmp_path / "served")]
    word_errors = pronounce.main([*options, *folders])
    output = capsys.readouterr().out
    assert printed(r"word error rate: (\d+\.\d\d) %", output) == round(word_errors, 2)
    assert 0 <= word_errors <= 100
    assert printed(r"phoneme error rate: (\d+\.\d\d) %", output) > 0
    assert "onomatopoeia" in output
    for picture in ("attention.png", "search.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "served/1/saved_model.pb").exists()
    assert isinstance(keras.saving.load_model(tmp_path / "pronounce.keras"), Seq2Seq)


def test_pronounce_splits_the_dictionary():
    pronounce = load("pronounce")
    words = pronounce.load_dictionary()
    assert words["read"] == ["R EH D", "R IY D"]
    assert not any(re.search(r"\d", p) for ps in words.values() for p in ps)
    parts = [pronounce.split(words, part) for part in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(words) > 125_000
    assert parts[0] | parts[1] | parts[2] == words
    shares = [100 * len(part) / len(words) for part in parts]
    np.testing.assert_allclose(shares, [97, 1, 2], atol=0.2)


# translate.py
def test_translate(tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.tsv"
    text.write_text("".join(f"ka lo {n}\t{n} LO KA\n" for n in range(97)), "utf-8")
    files = ["--train", str(text), "--valid", str(text), "--output", str(tmp_path)]
    options = ["--vocabulary-size", "37", "--tokens-per-batch", "509", "--epochs", "1"]
    options.append("--no-export")
    translate = load("translate")
    score = translate.main([*files, *options, "--word", "LO"])
    output = capsys.readouterr().out
    assert printed(r"BLEU (\d+\.\d\d)  \(.*\)", output) == round(score, 2)
    assert "  ka lo 4\n    → " in output
    assert f"attention: {tmp_path / 'attention.png'}" in output
    translated = keras.saving.load_model(tmp_path / "model.keras")
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    translate.draw_attention(translated, "it", ["ka lo 4"], tmp_path / "it.png")
    assert "no picture" in capsys.readouterr().out
    assert not (tmp_path / "it.png").exists()
    assert not (tmp_path / "saved_model").exists()


# custom_model.py


def test_custom_model(tmp_path, capsys):
    arguments = ["--limit", "2003", "--epochs", "2"]
    accuracy = load("custom_model").main([*arguments, "--output", str(tmp_path)])
    output = capsys.readouterr().out
    assert "1803 training words, 200 test words" in output
    assert printed(r"accuracy of the model: (\d+\.\d\d) %", output) == round(
        accuracy, 2
    )
    assert accuracy > printed(r"baseline accuracy \(always 2\): (\d+\.\d\d) %", output)
    assert printed(r"model: .* differ by (\S+)\)", output) < 1e-6
    assert (tmp_path / "syllables.keras").exists()


def test_custom_model_codes_letters():
    ids = load("custom_model").letter_ids(np.array(["ab", "cab's"]))
    assert ids.shape == (2, 16)
    assert ids[:, :6].tolist() == [[97, 98, 0, 0, 0, 0], [99, 97, 98, 39, 115, 0]]
    assert not ids[:, 6:].any()


# write.py


def test_write(tmp_path, monkeypatch, capsys):
    write = load("write")
    arguments = ["--limit", "6000", "--updates", "30", "--length", "16"]
    arguments += ["--samples", "2", "--characters", "7", "--prompt", "def"]
    loss = write.main([*arguments, "--output", str(tmp_path)])
    output = capsys.readouterr().out
    shown = printed(
        r"loss on 600 other characters: (\d\.\d+) nats per character", output
    )
    assert shown == round(loss, 3)
    uniform = np.log(len(set(write.read_text([])[:6000])))
    assert loss < uniform
    model = keras.saving.load_model(tmp_path / "write.keras")
    samples = output.split("-" * 79 + "\n")[1:]
    assert len(samples) == 2
    assert all(sample.startswith("def") for sample in samples)
    search = kt.Sampling(2, temperature=0.8, top_p=0.95)
    again = model.generate("def", search, 7, include_prompt=True, seed=1)
    assert [sample.removesuffix("\n") for sample in samples] == again


# classify.py


def test_classify(tmp_path, capsys):
    arguments = ["--limit", "500", "--epochs", "1", "--output", str(tmp_path)]
    accuracy = load("classify").main(arguments)
    output = capsys.readouterr().out
    size = printed(r"(\d+) training texts, \d+ test texts", output)
    assert 440 < size < 460
    shown = printed(r"accuracy of the Transformer: (\d+\.\d\d) %", output)
    assert shown == round(accuracy, 2)
    assert accuracy > 100 / 5  # the words have up to five syllables
    for model in ("the linear model", "always “1”"):
        assert printed(rf"accuracy of {model}: (\d+\.\d\d) %", output) > 50
    answers = re.findall(r"^\w+: (\d), probability", output, re.MULTILINE)
    assert f"the export: {answers}" in output and len(answers) == 4
    assert (tmp_path / "model.keras").is_file()


def test_classify_learns_from_a_file(tmp_path, capsys):
    path = tmp_path / "texts.tsv"
    lines = (f"{word} {n}\t{word}\n" for n in range(150) for word in ("no", "yes"))
    path.write_text("text\tlabel\n" + "".join(lines), "utf-8")
    arguments = [str(path), "--epochs", "10", "--output", str(tmp_path / "run")]
    arguments += ["--ask", "yes 7", "no 9"]
    assert load("classify").main(arguments) == 100.0
    assert "the export: ['yes', 'no']" in capsys.readouterr().out


def test_classify_finds_the_stress():
    pairs = load("classify").read_dictionary()
    assert {("guitar", "2"), ("window", "1"), ("understand", "3")} <= set(pairs)
    assert not any(word == "cat" for word, _ in pairs)  # one syllable


# vision.py


def test_vision(tmp_path, monkeypatch, capsys):
    vision = load("vision")
    arguments = ["--epochs", "5", "--output", str(tmp_path)]
    accuracy = vision.main(arguments)
    output = capsys.readouterr().out
    assert "1437 training pictures, 360 test pictures" in output
    assert printed(r"accuracy: (\d+\.\d\d) %", output) == round(accuracy, 2)
    assert accuracy > 30
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_vision_returns_the_attention_of_the_class_token():
    _, attention = load("vision").build_models(hidden_dim=8)
    scores = attention.predict(np.zeros((3, 8, 8, 1)), verbose=0)
    assert scores.shape == (3, 4, 16)
    # The sum over the patches lacks the score of the class token itself.
    assert np.all((scores > 0) & (scores.sum(axis=-1, keepdims=True) < 1))


# draw.py


def test_draw(tmp_path, monkeypatch, capsys):
    draw = load("draw")
    arguments = ["--epochs", "1", "--samples", "2"]
    loss = draw.main([*arguments, "--output", str(tmp_path)])
    output = capsys.readouterr().out
    shown = printed(r"loss of the model: (\d\.\d+) nats per pixel", output)
    assert shown == round(loss, 3)
    assert loss < np.log(draw.VOCABULARY_SIZE)
    shown = printed(r"loss of the frequencies: (\d\.\d+) nats per pixel", output)
    assert 1 < shown < np.log(17)
    assert printed(r"recognised of the test pictures: (\d+\.\d)%", output) > 95
    assert 0 <= printed(r"recognised of 20 drawings: (\d+\.\d)%", output) <= 100
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_draw_codes_pictures():
    pictures = np.array([[16, 0, 5], [1, 2, 3]])
    inputs, targets = load("draw").token_ids(pictures, np.array([9, 0]))
    assert inputs.tolist() == [[13, 30, 14], [4, 15, 16]]
    assert targets.tolist() == [[30, 14, 19], [15, 16, 17]]


def test_draw_counts_shades():
    draw = load("draw")
    black, white = np.full((2, 64), 16), np.zeros((2, 64), "int32")
    pictures, labels = np.concatenate([black, white]), np.array([1, 1, 2, 2])
    loss = draw.loss_of_frequencies(pictures, labels, pictures, labels)
    assert loss == pytest.approx(-np.log(2.1 / (2 + 17 * 0.1)))


# recommend.py


def test_recommend(tmp_path, monkeypatch, capsys):
    path = tmp_path / "histories.txt"
    # After `aN` comes `bN`, but `c` is more popular than each of them.
    lines = (f"c c a{n} b{n} c c a{n} b{n}\n" for n in range(30) for _ in range(20))
    path.write_text("".join(lines), "utf-8")
    recommend = load("recommend")
    rate = recommend.main([str(path), "--epochs", "6"])
    output = capsys.readouterr().out
    assert "600 histories of 61 different items" in output
    assert printed(r"hit rate of the model: (\d+\.\d\d) %", output) == round(rate, 2)
    shown = printed(r"hit rate of the most popular items: (\d+\.\d\d) %", output)
    assert shown < 35 < rate
    assert printed(r"hit rate of the items that follow: (\d+\.\d\d) %", output) == 100


def test_recommend_counts_items():
    rows = [[7, 8, 7, 8, 7], [7, 9], [8, 8]]
    popular, following = load("recommend").count_items(rows)
    assert popular == [7, 8, 9]
    assert following == [[8, 9, 7], [7, 8, 9], [7, 8, 9]]


def test_recommend_reads_calls_in_order():
    (function,) = ast.parse("def f():\n    a(b(1)).c()\n    x[0]()\n    d.e()").body
    assert load("recommend").called_names(function) == ["a", "b", "c", "e"]


# pretrain.py


def test_pretrain(monkeypatch, capsys):
    pretrain = load("pretrain")
    monkeypatch.setattr(pretrain, "LIBRARIES", ("numpy", "seaborn"))
    read = pretrain.read_docstrings
    monkeypatch.setattr(
        pretrain, "read_docstrings", lambda random: [x[:400] for x in read(random)]
    )
    arguments = ["--epochs", "1", "--labels", "40", "--draws", "1"]
    accuracy = pretrain.main([*arguments, "--vocabulary-size", "300"])
    output = capsys.readouterr().out
    assert "360 texts without labels, 40 test texts" in output
    assert "accuracy with 40 labels, mean of 1 draws:" in output
    shown = printed(r"  pretrained: (\d+\.\d) %", output)
    assert shown == round(accuracy, 1)
    for name in ("linear model", "from scratch"):
        assert 0 < printed(rf"  {name}: (\d+\.\d) %", output) <= 100


def test_pretrain_hides_tokens(monkeypatch):
    pretrain = load("pretrain")
    encoder = pretrain.build_encoder(8)
    calls = []

    def fit(model, inputs, targets, **_):
        calls.append((inputs, targets))

    monkeypatch.setattr(keras.Model, "fit", fit)
    ids = np.tile([1, 2, 3, 4, 5, 6, 0, 0], (200, 1))
    options = argparse.Namespace(epochs=2, seed=1)
    pretrain.pretrain(encoder, ids, 7, options)
    for inputs, targets in calls:
        hidden = inputs == 7
        assert 0.1 < hidden[:, :6].mean() < 0.2
        assert not hidden[:, 6:].any()
        np.testing.assert_array_equal(inputs[~hidden], ids[~hidden])
        np.testing.assert_array_equal(targets, np.where(hidden, ids, 0))
    assert (calls[0][0] != calls[1][0]).any()  # others in each epoch


# answer.py


def test_answer(monkeypatch, capsys):
    answer = load("answer")
    exact = answer.main(["--texts", "200", "--epochs", "1"])
    output = capsys.readouterr().out
    assert "180 training texts, 20 test texts" in output
    assert printed(r"exact match of the model: (\d+\.\d\d) %", output) == exact
    kind = "the first of its kind"
    assert 0 < printed(rf"exact match of {kind}: (\d+\.\d\d) %", output) < 100


def test_answer_is_in_the_text():
    answer = load("answer")
    random = np.random.default_rng(1)
    pairs = [answer.make_pair(random) for _ in range(101)]
    for source, text in pairs:
        question, context = source.split(" ? ")
        (sentence,) = (s for s in context.split(" .") if text in s)
        asked = question.split()[-1]
        asked = question.split()[-2] if asked in ("live", "play") else asked
        assert asked in sentence.split()
    firsts = [answer.first_of_kind(*pair) for pair in pairs]
    assert answer.exact_match(firsts, [text for _, text in pairs]) < 60
    source = "Who lives in Oslo ? Ben lives in Rome . Eva lives in Oslo ."
    assert answer.first_of_kind(source, "Eva") == "Ben"


# caption.py


def test_caption(tmp_path, monkeypatch, capsys):
    caption = load("caption")
    monkeypatch.setattr(caption, "TEST_PICTURES", 100)
    arguments = ["--pictures", "200", "--epochs", "1"]
    exact = caption.main([*arguments, "--output", str(tmp_path)])
    output = capsys.readouterr().out
    assert "200 training pictures, 100 test pictures" in output
    shown = printed(r"exact match of the model: (\d+\.\d\d) %", output)
    assert shown == round(exact, 2)
    machine = "the support vector machine"
    assert exact < printed(rf"exact match of {machine}: (\d+\.\d\d) %", output) < 100
    assert (tmp_path / "captions.png").read_bytes().startswith(b"\x89PNG")


def test_caption_says_what_is_where():
    caption = load("caption")
    # Every pixel of a digit has its value.
    images = np.tile(np.arange(1.0, 10)[:, None, None], (1, 8, 8))
    pictures, captions = caption.make_pictures(images, np.arange(1, 10), 50, seed=1)
    assert pictures.shape == (50, 24, 24, 1)
    for picture, text in zip(pictures[..., 0], captions, strict=True):
        expected = np.zeros((24, 24))
        for phrase in text.split(" , "):
            name, place = phrase.split(maxsplit=1)
            row = 16 * ("bottom" in place) or 8 * ("top" not in place)
            column = 16 * ("right" in place) or 8 * ("left" not in place)
            value = caption.NAMES.index(name)
            expected[row : row + 8, column : column + 8] = value
        np.testing.assert_array_equal(picture, expected)
    assert {len(text.split(" , ")) for text in captions} == {1, 2, 3, 4}
    others, names = caption.make_pictures(images, np.zeros(9, int), 50, seed=1)
    np.testing.assert_array_equal(others, pictures)
    assert {text.split()[0] for text in names} == {"zero"}


def test_speech(monkeypatch, capsys):
    speech = load("speech")
    arguments = ["--sentences", "130", "--epochs", "1"]
    rate = speech.main(arguments)
    output = capsys.readouterr().out
    assert "130 training sentences, 600 test sentences" in output
    assert printed(r"digit error rate: (\d+\.\d\d) %", output) == round(rate, 2)
    assert rate > 20


def test_speech_has_the_bands_of_a_tone():
    speech = load("speech")
    time = np.arange(speech.RATE) / speech.RATE
    low, high = (
        speech.to_frames(np.sin(2 * np.pi * hertz * time)).argmax(axis=1)
        for hertz in (440, 3300)
    )
    # 440 Hz are 550 of the 2,840 mel of 33 equal steps; 3,300 Hz are 1,964.
    assert set(low) == {5} and set(high) == {22}
    assert not speech.to_frames(np.zeros(2000)).any()


def test_voices_differ_and_the_test_has_its_own():
    speech = load("speech")
    assert len(set(speech.VOICES)) == 24 and len(speech.TEST_VOICES) == 6
    sounds = set()
    for voice in speech.VOICES:
        frames, texts = speech.speak([voice], 1, np.random.default_rng(3))
        assert 2 <= len(texts[0].split()) <= 5
        sounds.add(frames.tobytes())
    assert len(sounds) == 24


# summarize.py


def test_summarize(monkeypatch, capsys):
    summarize = load("summarize")
    monkeypatch.setattr(summarize, "LIBRARIES", ("numpy",))
    arguments = ["--limit", "100", "--epochs", "1", "--vocabulary-size", "300"]
    rouge = summarize.main([*arguments])
    output = capsys.readouterr().out
    assert "95 training texts, 5 test texts" in output
    scores = r"\d+\.\d\d, \d+\.\d\d, (\d+\.\d\d)"
    shown = printed(rf"ROUGE-1, -2, -L of the model: {scores}", output)
    assert shown == round(rouge, 2)
    assert printed(rf"ROUGE-1, -2, -L of the first sentence: {scores}", output) > 0


def test_summarize_computes_rouge(capsys):
    outputs, headlines = ["the cat sat", "a b"], ["the cat sits", "c d"]
    rouge_l = load("summarize").print_rouge("toy", outputs, headlines)
    assert rouge_l == pytest.approx(100 * 2 / 3 / 2)
    # One of two pairs of words; the second output shares nothing.
    assert "-2, -L of the toy: 33.33, 25.00, 33.33" in capsys.readouterr().out

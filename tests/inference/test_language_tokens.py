"""The language token of a multilingual model, at every stage around the tokenizer."""

import io

import keras
import marian_folders
import pytest
from layer_contract import with_random_weights

from keras_transformer import (
    GreedySearch,
    MarianTokenizer,
    Seq2Seq,
    TranslationQuality,
    parallel_dataset,
    translate_file,
)
from keras_transformer.file_translation import translate_stream
from keras_transformer.file_translation.translation import model_side

pytestmark = pytest.mark.once("torch")

TEXT = ">>fra<< a cat"
BLANK = [">>fra<<", ">>deu<< ", ">>deu<<\t\u3000"]
UNKNOWN = ">>spa<< a cat"
GREEDY = GreedySearch()


@pytest.fixture(scope="module")
def model():
    protos = [marian_folders.pieces(marian_folders.SOURCES, 31)] * 2
    ids = marian_folders.vocabulary(protos, (">>deu<<", ">>fra<<"))
    tokenizer = MarianTokenizer(protos[0], list(ids))
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        max_source_length=30,
        source_tokenizer=tokenizer,
    )
    return with_random_weights(model)


def message(argument, where):
    return (
        rf"`{argument}` must begin with a language token .* \['>>deu<<', '>>fra<<'\]; "
        f"received '>>spa<<' in {where}"
    )


def test_the_language_token_alone_is_an_empty_text(model):
    texts, scores = model.generate([*BLANK, TEXT], GREEDY, return_scores=True)
    assert texts[:3] == [""] * 3 and texts[3]
    assert scores[:3].tolist() == [0.0] * 3
    assert texts[3] == model.generate(TEXT, GREEDY)
    model.generate([f" {UNKNOWN}"], GREEDY)  # A space makes it a part of the text.
    _, score = model.generate(TEXT.replace("fra", "deu"), GREEDY, return_scores=True)
    assert abs(score - scores[3]) > 1e-3
    for text in BLANK:
        assert [*model.stream(text, GREEDY)] == []
        assert model.search_tree(text) == ([], [], [])


def test_a_line_of_the_language_token_alone_is_blank(model, tmp_path):
    lengths = model_side(model).window(0, [*BLANK, "", TEXT]).lengths.tolist()
    assert lengths == [0, 0, 0, 0, len(model.source_tokenizer.tokenize([TEXT])[0]) + 1]
    lines = [BLANK[0], TEXT, BLANK[1]]
    (tmp_path / "in").write_text("\n".join(lines), "utf-8")
    translate_file(model, tmp_path / "in", tmp_path / "out", GREEDY, verbose=0)
    written = (tmp_path / "out").read_text("utf-8").split("\n")
    assert written == ["", model.generate(TEXT, GREEDY), "", ""]


@pytest.mark.parametrize(
    "argument, call",
    {
        "inputs": lambda model, texts: model.generate(texts),
        "inputs of one text": lambda model, texts: model.generate(texts[1]),
        "inputs of a stream": lambda model, texts: model.stream(texts[1]),
        "inputs of a tree": lambda model, texts: model.search_tree(texts[1]),
        "prefix": lambda model, texts: model.generate([TEXT, TEXT], prefix=texts),
        "sources": lambda model, texts: model.score(texts, texts),
        "targets": lambda model, texts: model.align([TEXT, TEXT], texts),
    }.items(),
)
def test_an_unknown_language_token_is_refused(model, argument, call):
    argument, *single = argument.split()
    where = "row 0" if single else "row 1"
    for texts in ([TEXT, UNKNOWN], [TEXT.encode(), UNKNOWN.encode()]):
        with pytest.raises(ValueError, match=message(argument, where)):
            call(model, texts)


def test_an_unknown_language_token_of_a_file(model, tmp_path):
    (tmp_path / "in").write_text(f"{TEXT}\n\n{UNKNOWN}\n")
    with pytest.raises(ValueError, match=message("source", "line 3")):
        translate_file(model, tmp_path / "in", tmp_path / "out", verbose=0)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=message("source", "line 1")):
        translate_stream(model, io.BufferedReader(io.BytesIO(UNKNOWN.encode())), None)


def test_an_unknown_language_token_of_a_validation_set(model):
    quality = TranslationQuality([TEXT, UNKNOWN], ["x", "y"])
    quality.set_model(model)
    with pytest.raises(ValueError, match=message("sources", "line 2")):
        quality.on_train_begin()


def test_a_model_without_language_tokens():
    protos = [marian_folders.pieces(marian_folders.SOURCES, 31)] * 2
    ids = marian_folders.vocabulary(protos, ())
    tokenizer = MarianTokenizer(protos[0], list(ids))
    assert tokenizer.language_token_ids == ()
    with pytest.raises(ValueError, match="`x` must .* there are none; .* in row 7"):
        tokenizer.check_language_token(UNKNOWN, [1, 5], "x", "row 7")
    restored = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(tokenizer)
    )
    assert restored.unknown_language_token(UNKNOWN, [1, 5]) == ">>spa<<"


def test_training_pairs(model):
    def data(*pairs):
        return parallel_dataset(
            pairs=pairs,
            source_tokenizer=model.source_tokenizer,
            target_tokenizer=model.source_tokenizer,
        )

    kept = [(TEXT, TEXT), (TEXT, "a dog")]
    found = data(kept[0], (">>deu<<", TEXT), kept[1], (">>fra<<\t", "a"))
    assert found.dropped["empty"] == 2 and found.pairs_kept == 2
    for pair, name in (((UNKNOWN, "a"), "source"), (("a", UNKNOWN), "target")):
        with pytest.raises(ValueError, match=message(name, "line 3")):
            data(*kept, pair)

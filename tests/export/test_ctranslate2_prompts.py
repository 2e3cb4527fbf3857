"""A CTranslate2 model of a `CausalLM` continues prompts as `generate` does."""

import json
import shutil

import ctranslate2
import numpy as np
import pytest
import sentencepiece
from ctranslate2_designs import CAUSAL_DESIGNS, CAUSAL_WRITTEN_DESIGNS, LETTERS
from ctranslate2_designs import causal_model_of as model_of
from ctranslate2_designs import model_of as encoder_decoder
from gpt2_folders import random_model, write_tokenizer
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer.export import ctranslate2 as exporting
from keras_transformer.interoperability import load_ctranslate2, load_pretrained
from keras_transformer.layers import (
    AlibiBias,
    PositionScheme,
    RotaryEmbedding,
)
from keras_transformer.text import KerasHubTokenizer, SentencePieceTokenizer

# PyTorch does not compile the searches, which takes longer than they run.
pytestmark = pytest.mark.once("torch")

GREEDY = GreedySearch()
TEXTS = ["abc", "", "deadbeef"]
# Of different lengths. CTranslate2 repeats prompts if the batch has one of one token.
PROMPTS = [[4, 5, 6], [7, 4], [4, 8, 8, 5, 7, 9, 4]]


def export(model, folder, **options):
    options = {"search": GREEDY, "check_texts": TEXTS, **options}
    model.export(folder, format="ctranslate2", **options)
    return ctranslate2.Generator(str(folder), intra_threads=1)


def tokens(tokenizer, rows):
    return [[tokenizer.id_to_token(token_id) for token_id in row] for row in rows]


def generate(generator, tokenizer, prompts, **options):
    """Continues prompts, in one batch by default; returns tokens and the results."""
    results = generator.generate_batch(
        tokens(tokenizer, prompts),
        include_prompt_in_result=False,
        return_end_token=True,
        return_scores=True,
        suppress_sequences=[["<pad>"]],
        length_penalty=0,
        **options,
    )
    return [result.sequences_ids[0] for result in results], results


def best_of(result):
    best = zip(result.token_ids[:, 0], result.lengths[:, 0], strict=True)
    return [row[:length].tolist() for row, length in best]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    sizes = {"vocab_size": 20, "bos_token_id": 19, "eos_token_id": 19}
    random_model(**sizes).save_pretrained(folder)
    write_tokenizer(folder, lambda count: {"vocab_size": count})
    return load_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ctranslate2") / "1"


@pytest.fixture(scope="module")
def generator(gpt2, folder):
    return export(gpt2, folder, search=BeamSearch(3), check_texts=["a man", "", "so"])


# The outputs of GPT-2.


@pytest.mark.slow
def test_greedy_search_gives_the_tokens_of_generate(gpt2, generator):
    found, results = generate(generator, gpt2.tokenizer, PROMPTS, max_length=8)
    expected = gpt2.generate(PROMPTS, GREEDY, max_length=8)
    assert found == best_of(expected)
    assert len({*map(tuple, found)}) == 3
    scores = [result.scores[0] for result in results]
    np.testing.assert_allclose(scores, expected.scores[:, 0], atol=1e-4)


@pytest.mark.slow
def test_beams_have_the_scores_of_the_model(gpt2, generator):
    # With prompts of other lengths in the batch, CTranslate2 loses short hypotheses.
    options = {"beam_size": 4, "max_batch_size": 1, "num_hypotheses": 2}
    options["max_length"] = 6
    found, results = generate(generator, gpt2.tokenizer, PROMPTS, **options)
    expected = gpt2.generate(PROMPTS, BeamSearch(4, length_penalty=0), max_length=6)
    assert found == best_of(expected)
    for number in range(2):
        rows = [result.sequences_ids[number] for result in results]
        scores = [result.scores[number] for result in results]
        again = gpt2.score(PROMPTS, rows)
        errors = np.abs(scores - again.scores) / again.lengths
        assert errors.max() < 1e-4


# Other designs.


@pytest.mark.parametrize("name", [*CAUSAL_DESIGNS, *CAUSAL_WRITTEN_DESIGNS])
def test_every_design_has_the_outputs_of_the_model(name, tmp_path):
    model = model_of(**{**CAUSAL_DESIGNS, **CAUSAL_WRITTEN_DESIGNS}[name]())
    exporting._write(model, tmp_path / "1", None)
    generator = ctranslate2.Generator(str(tmp_path / "1"), intra_threads=1)
    found, _ = generate(generator, LETTERS, PROMPTS, max_length=5)
    expected = model.generate(PROMPTS, GREEDY, max_length=5)
    assert found == best_of(expected)
    texts = [[*prompt, 9, 1, 3] for prompt in PROMPTS]
    results = generator.score_batch(tokens(LETTERS, texts))
    scores = [sum(result.log_probs[-3:]) for result in results]
    expected = model.score(PROMPTS, [[9, 1, 3]] * 3).scores
    np.testing.assert_allclose(scores, expected, atol=1e-4)


# The folder.


def test_strings_with_sentence_pieces(tmp_path):
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=29)
    model = model_of(tokenizer=tokenizer, add_start_token=True)
    texts = ["the mat", "a ☃ sat"]
    generator = export(model, tmp_path / "1", check_texts=[*texts, ""])
    names = {
        "tokenizer.model",
        "vocabulary.json",
        "model.bin",
        "config.json",
        "keras_transformer.json",
    }
    assert {file.name for file in (tmp_path / "1").iterdir()} == names
    pieces = sentencepiece.SentencePieceProcessor(str(tmp_path / "1/tokenizer.model"))
    results = generator.generate_batch(
        [["<s>", *row] for row in pieces.encode(texts, out_type=str)],
        include_prompt_in_result=False,
        max_length=5,
        suppress_sequences=[["<pad>"]],
    )
    outputs = [pieces.decode(result.sequences[0]) for result in results]
    assert outputs == model.generate(texts, GREEDY, max_length=5)
    assert any(outputs)


@pytest.fixture(scope="module")
def byte_pairs(gpt2):
    """The tokenizer of `gpt2` as one of KerasHub."""
    content = json.loads(gpt2.tokenizer.content)["model"]
    merges = [" ".join(pair) for pair in content["merges"]]
    return KerasHubTokenizer.from_byte_pairs("GPT2Tokenizer", content["vocab"], merges)


def read_pairs(folder, side=""):
    files = [folder / f"{side}{name}" for name in ("vocab.json", "merges.txt")]
    return ByteLevelBPETokenizer.from_file(*map(str, files))


def read_file(folder, side=""):
    return Tokenizer.from_file(str(folder / f"{side}tokenizer.json"))


def check_strings(model, folder, generator, pieces):
    """Compares the ids and outputs of texts with those of another package."""
    texts = ["a man sees", " so", "  man so\tdog", "<unk>"]
    expected = model.tokenizer.tokenize(texts).to_list()
    encoded = [pieces.encode(text) for text in texts]
    assert [each.ids for each in encoded[:2]] == expected[:2]
    assert len(encoded[0].ids) < 6  # of 10 characters
    results = generator.generate_batch(
        [each.tokens for each in encoded[:2]],
        include_prompt_in_result=False,
        max_batch_size=1,
        max_length=8,
    )
    outputs = [pieces.decode(result.sequences_ids[0]) for result in results]
    assert outputs == model.generate(texts[:2], GREEDY, max_length=8)
    loaded = load_ctranslate2(folder).tokenizer
    assert type(loaded) is type(model.tokenizer)
    assert loaded.get_vocabulary() == model.tokenizer.get_vocabulary()
    assert loaded.tokenize(texts).to_list() == expected


def check_other_vocabulary(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other") / "vocabulary.json"
    other.write_text(other.read_text().replace("so", "added"))
    assert load_ctranslate2(other.parent).tokenizer is None


@pytest.mark.slow
def test_strings_with_byte_pairs(byte_pairs, tmp_path):
    model = model_of(tokenizer=byte_pairs)
    generator = export(model, tmp_path / "1", check_texts=["a man", "", "so"])
    check_strings(model, tmp_path / "1", generator, read_pairs(tmp_path / "1"))
    check_other_vocabulary(tmp_path / "1", tmp_path)


@pytest.mark.slow
def test_strings_with_a_tokenizer_of_hugging_face(gpt2, generator, folder, tmp_path):
    check_strings(gpt2, folder, generator, read_file(folder))
    check_other_vocabulary(folder, tmp_path)
    content = json.loads((folder / "keras_transformer.json").read_text())
    assert content["tokenizers"]["source"]["config"]["tokenizer"] == "tokenizer.json"
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    for text in ("{}", "[", "é"):
        (damaged / "tokenizer.json").write_text(text, "latin-1")
        with pytest.raises(ValueError, match="json must be a tokenizer of Hugging"):
            load_ctranslate2(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("read", [read_pairs, read_file])
def test_tokenizers_of_two_sides(gpt2, byte_pairs, read, tmp_path):
    tokenizer = byte_pairs if read is read_pairs else gpt2.tokenizer
    model = encoder_decoder(source_tokenizer=tokenizer, target_tokenizer=None)
    exporting._write(model, tmp_path / "1", None)
    expected = tokenizer.tokenize(["a man"]).to_list()
    for side in ("source_", "target_"):
        assert [read(tmp_path / "1", side).encode("a man").ids] == expected
    if read is read_file:
        loaded = load_ctranslate2(tmp_path / "1")
        assert loaded.source_tokenizer is loaded.target_tokenizer
        assert loaded.source_tokenizer.tokenize(["a man"]).to_list() == expected


# The check.


def test_prompts_up_to_the_limit_are_checked(tmp_path):
    """Without room for the second token."""
    model = model_of(max_length=8)
    export(model, tmp_path / "1")
    with pytest.raises(ValueError, match="at most `max_length=8` tokens each"):
        export(model, tmp_path / "2", check_texts=["deadbeefa"])


# Errors.


class OtherScheme(PositionScheme):
    """No scheme of the library."""


YARN = {"type": "yarn", "factor": 2.0, "original_max_length": 7}
# More of them are in `test_ctranslate2.py`.
REFUSED = {
    "max_bias": ({"positions": AlibiBias(max_bias=4)}, "8"),
    "positions": (
        {"positions": OtherScheme()},
        "an encoding, `RotaryEmbedding`, `RelativePositionBias`, `AlibiBias` .*Use",
    ),
    "value_dim": ({"attention_options": {"value_dim": 5}}, "`key_dim`"),
    "sliding_window": (
        {"attention_options": {"sliding_window": [None, 3]}},
        r"`None` for CTranslate2; received `sliding_window=\[None, 3\]`",
    ),
    "scaling": ({"positions": RotaryEmbedding(scaling=YARN)}, "`None` or of .*'yarn'"),
    "layer_norm_epsilon": (
        {
            "attention_options": {
                "query_key_normalization": "rms",
                "layer_norm_epsilon": 0.1,
            }
        },
        "the same in the model and `attention_options`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_architectures_are_refused(name, tmp_path):
    design, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"`{name}` must be {message}"):
        export(model_of(**design), tmp_path / "1")
    assert list(tmp_path.iterdir()) == []

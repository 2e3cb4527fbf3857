"""Marian's own files: CTranslate2's converter computes the same from a folder."""

import json
import re
import shutil

import ctranslate2
import marian_folders
import numpy as np
import opus_folders
import pytest
import tensorflow as tf
import yaml
from ctranslate2.converters import OpusMTConverter
from ctranslate2.converters.marian import load_vocab
from ctranslate2_designs import log_probabilities

from keras_transformer import BeamSearch
from keras_transformer.interoperability import load_pretrained
from keras_transformer.interoperability.marian_vocabulary import read_vocabulary_file

pytestmark = pytest.mark.once("torch")

TEXTS = [*marian_folders.SOURCES, ">>deu<< two cats", ">>fra<< a man"]
SEARCH = BeamSearch(3, 0.0, num_hypotheses=3)


class Pair:
    """A folder, the `Seq2Seq` loaded from it, and the model of CTranslate2."""

    def __init__(self, name, folder):
        self.tokens = opus_folders.random_folder(folder, name)
        self.folder = folder
        self.ours = load_pretrained(folder)
        OpusMTConverter(str(folder)).convert(str(folder / "converted"))
        self.theirs = ctranslate2.Translator(str(folder / "converted"), intra_threads=1)

    def pieces(self, texts):
        tokenizer = self.ours.source_tokenizer
        rows = tokenizer.tokenize(texts).to_list()
        return [[self.tokens[0][token_id] for token_id in row] for row in rows]

    def their_hypotheses(self, texts, translator=None, **options):
        """Returns texts and scores of three hypotheses for each text."""
        found = (translator or self.theirs).translate_batch(
            self.pieces(texts),
            beam_size=3,
            num_hypotheses=3,
            length_penalty=0,
            max_decoding_length=19,
            min_decoding_length=0,
            return_scores=True,
            **options,
        )
        ids = {token: number for number, token in enumerate(self.tokens[1])}
        rows = [
            [ids[token] for token in row] for one in found for row in one.hypotheses
        ]
        texts = self.ours.target_tokenizer.detokenize(tf.ragged.constant(rows)).numpy()
        texts = [text.decode() for text in texts]
        grouped = [texts[i : i + 3] for i in range(0, len(texts), 3)]
        return grouped, np.array([one.scores for one in found])


@pytest.fixture(scope="module", params=opus_folders.DESIGNS)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp("opus") / "model")


def test_log_probabilities(pair):
    rng = np.random.default_rng(3)
    size = len(pair.tokens[1])
    sources = pair.ours.source_tokenizer.tokenize(TEXTS, add_end=True).to_list()
    targets = [rng.integers(1, size, 1 + i).tolist() for i in range(len(TEXTS))]
    tokens = [[pair.tokens[1][token_id] for token_id in row] for row in targets]
    scores = pair.theirs.score_batch(pair.pieces(TEXTS), tokens)
    targets = [[*row, 0] for row in targets]
    tables = log_probabilities(pair.ours, sources, targets)
    for table, row, score in zip(tables, targets, scores, strict=True):
        found = table[range(len(row)), row]
        np.testing.assert_allclose(found, score.log_probs, atol=1e-4)


@pytest.mark.parametrize("pair", ["tc-big", "untied"], indirect=True)
def test_hypotheses(pair):
    texts = TEXTS[:5]  # whose outputs end before the limit
    theirs, their_scores = pair.their_hypotheses(texts)
    ours, scores = pair.ours.generate(texts, SEARCH, 20, return_scores=True)
    assert len({text for row in theirs for text in row}) > 3
    best = [row[0] for row in theirs]
    np.testing.assert_allclose(scores[:, 0], their_scores[:, 0], atol=1e-4)
    assert [row[0] for row in ours] == best


def test_pieces_are_those_of_sentencepiece(pair):
    processor = opus_folders.sentencepiece.SentencePieceProcessor(
        model_proto=(pair.folder / "source.spm").read_bytes()
    )
    text = "two men see the cat"
    assert pair.pieces([text, f">>deu<< {text}"]) == [
        processor.encode(text, out_type=str),
        [">>deu<<", *processor.encode(text, out_type=str)],
    ]


# Vocabularies.

TOKENS = ["</s>", "<unk>", "\u2581a", '"', "\\", "'", ":", ": ", "a: b", "#", "?", "-"]
TOKENS += ["true", "~", "12", "<<", "=", "\xa0", "\x07", "\ufeff", "😀", "x" * 200]
LINES = ["\x85", "\u2028", "\n", "\r"]  # PyYAML writes them correctly in `"` only


@pytest.mark.parametrize("style", ['"', "'", None])
def test_vocabularies_are_those_of_a_yaml_parser(tmp_path, style):
    tokens = [*TOKENS, *LINES] if style == '"' else TOKENS
    content = {token: number for number, token in enumerate(tokens)}
    options = {"allow_unicode": True, "sort_keys": False, "width": 10**6}
    text = yaml.safe_dump(content, default_style=style, **options)
    text = re.sub(r"!!int [\"'](\d+)[\"']", r"\1", text)
    path = tmp_path / "vocab.yml"
    path.write_text(text, "utf-8")
    assert read_vocabulary_file(path) == [*yaml.safe_load(text)] == tokens


def test_vocabularies_are_those_of_ctranslate2(tmp_path):
    tokens = [*TOKENS[:3], '"', "\\", "\x85", "a: b", "true", "12", "<<"]
    opus_folders.write_vocabulary(tmp_path / "vocab.yml", tokens)
    assert read_vocabulary_file(tmp_path / "vocab.yml") == tokens
    assert load_vocab(tmp_path / "vocab.yml") == tokens


VOCABULARIES = {
    "a: 0\nb": "line 2 of .*vocab.yml must be `token: id`; it is 'b'",
    "a: 0\nb: -1": "line 2 .* it is 'b: -1'",
    "a: b": "line 1 .* it is 'a: b'",
    "a: 0\na: 1": "line 2 repeats 'a'",
    "a: 0\nb: 2": "its 2 tokens the ids from 0 to 1",
    "a: 0\nb: 0": "its 2 tokens the ids from 0 to 1",
    "": "its 0 tokens",
    '"\\ud800": 0': "is not a character",
}


@pytest.mark.parametrize("text", VOCABULARIES)
def test_damaged_vocabularies(tmp_path, text):
    (tmp_path / "vocab.yml").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=VOCABULARIES[text]):
        read_vocabulary_file(tmp_path / "vocab.yml")


# Unsupported, damaged and hostile files.


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "model"
    opus_folders.random_folder(folder, "untied")
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


def change_arrays(folder, change):
    [path] = folder.glob("*.npz*")
    arrays = dict(np.load(path))
    change(arrays)
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def set_options(folder, **options):
    def change(arrays):
        settings = yaml.safe_load(arrays["special:model.yml"].tobytes()[:-1])
        settings |= {name.replace("_", "-"): value for name, value in options.items()}
        text = yaml.safe_dump(settings).encode() + b"\0"
        arrays["special:model.yml"] = np.frombuffer(text, "int8")

    change_arrays(folder, change)


def refusal(folder, error=ValueError):
    with pytest.raises(error) as raised:
        load_pretrained(folder)
    return str(raised.value)


OPTIONS = {
    "type": "s2s",
    "right-left": True,
    "transformer-decoder-autoreg": "average-attention",
    "transformer-no-projection": True,
    "transformer-postprocess-emb": "dn",
    "transformer-preprocess": "d",
    "transformer-train-position-embeddings": True,
    "transformer-ffn-activation": "gelu",
    "transformer-ffn-depth": 3,
    "transformer-heads": 5,
    "transformer-heads ": 0,
    "enc-depth": 10**9,
    "dec-depth": 2,
    "lemma-dim-emb": 4,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_unsupported_options(folder, name):
    set_options(folder, **{name.strip(): OPTIONS[name]})
    message = refusal(folder)
    assert name.strip() in message and str(OPTIONS[name]) in message


def test_tensors_that_belong_to_no_weight(folder):
    more = {"encoder_l1_ffn_W3": np.ones((7, 7), "float32")}
    change_arrays(folder, lambda arrays: arrays.update(more))
    assert "it holds 'encoder_l1_ffn_W3', which" in refusal(folder)


def test_missing_and_quantized_tensors(folder):
    name = "decoder_l1_context_Wk"
    change_arrays(folder, lambda arrays: arrays.pop(name))
    assert "encoder_attn.k_proj.weight' of shape (12, 12)" in refusal(folder)
    change_arrays(folder, lambda arrays: arrays.update({name: np.ones(3, "int8")}))
    assert f"'{name}'" in (message := refusal(folder)) and "int8" in message
    change_arrays(folder, lambda arrays: arrays.pop("special:model.yml"))
    assert "'special:model.yml', the settings of the model" in refusal(folder)


def test_a_vocabulary_with_more_tokens_than_the_embedding(folder):
    with open(folder / "opus.trg.vocab.yml", "a") as file:
        file.write(f"new: {len(load_vocab(folder / 'opus.trg.vocab.yml'))}\n")
    assert "opus.trg.vocab.yml must have at most" in refusal(folder)


def test_files_outside_the_folder(folder):
    path = folder / "decoder.yml"
    decoder = yaml.safe_load(path.read_text())
    for file in ("/etc/passwd", "a/../../b", 3, None):
        for name in ("models", "vocabs"):
            path.write_text(json.dumps({**decoder, name: [file]}))
            message = f"`{name}` in decoder.yml must name files in its folder"
            assert message in refusal(folder)
    path.write_text(json.dumps({**decoder, "models": decoder["models"] * 2}))
    assert "`models` in decoder.yml must name one file; it names 2" in refusal(folder)


@pytest.mark.parametrize(
    "text",
    [
        *("a: [", "[1]", "", "!!python/object/apply:os.abort []", "[" * 1999),
        "a: &a [b]\nmodels: [*a, *a]",
    ],
)
def test_a_damaged_decoder_file(folder, text):
    (folder / "decoder.yml").write_text(text)
    assert "decoder.yml must" in refusal(folder)


@pytest.mark.parametrize("name", ["source.spm", "opus.src.vocab.yml"])
def test_missing_files(folder, name):
    (folder / name).unlink()
    assert f"must have the file {name}" in refusal(folder, FileNotFoundError)


@pytest.mark.parametrize("name", ["source.spm", "opus.src.vocab.yml"])
def test_damaged_tokenizers(folder, name):
    (folder / name).write_text('"\\uD800": 0\n')
    assert f"{folder / name} must be a" in refusal(folder)


def test_without_pieces_of_the_target_outputs_are_the_same(folder):
    (folder / "target.spm").unlink()
    tokenizer = load_pretrained(folder).target_tokenizer
    tokens = load_vocab(folder / "opus.trg.vocab.yml")
    processor = opus_folders.sentencepiece.SentencePieceProcessor(
        model_proto=marian_folders.pieces(marian_folders.TARGETS, 29)
    )
    ids = [
        [tokens.index(piece) for piece in processor.encode(text, out_type=str)]
        for text in marian_folders.TARGETS
    ]
    found = tokenizer.detokenize(tf.ragged.constant(ids)).numpy()
    assert [text.decode() for text in found] == marian_folders.TARGETS


@pytest.mark.parametrize("share", [0.0, 0.01, 0.99])
def test_truncated_weights(folder, share):
    [path] = folder.glob("*.npz*")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "must be an npz file of Marian; it is another" in refusal(folder)


def test_pickled_and_inflated_arrays(folder):
    [path] = folder.glob("*.npz*")
    objects = np.array([{"a": 1}], object)
    change_arrays(folder, lambda arrays: arrays.update(Wemb=objects))
    assert "must be an npz file of Marian" in refusal(folder)
    np.savez_compressed(folder / "zeros", a=np.zeros(10**7))
    (folder / "zeros.npz").rename(path)
    assert "its members would have 8000" in refusal(folder)

import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import keras
import keras_nlp
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from tokenizers import ByteLevelBPETokenizer

from keras_transformer import (
    BannedTexts,
    GreedySearch,
    KerasHubTokenizer,
    LabelSmoothedCrossEntropy,
    Seq2Seq,
    WordTokenizer,
    parallel_dataset,
)
from keras_transformer.text import Tokenizer

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
KINDS = ["GPT2Tokenizer", "BertTokenizer", "SentencePieceTokenizer"]
LINES = ["the cats sat", "a cat saw the mat", "the mat", "cats saw", ""]
# One character for each byte, as in the file of GPT-2: bytes without a visible
# character have the code points from 256 on.
VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
BYTES = [*map(chr, VISIBLE), *(chr(256 + number) for number in range(len(HIDDEN)))]
MERGES = ["Ġ t", "h e", "Ġt he", "c a", "ca t", "t he", "Ġ cat", "s a"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat"]
WORDS += ["saw", "a", "mat", "."]


def gpt2():
    tokens = ["!", "<|endoftext|>", *BYTES[1:], *(m.replace(" ", "") for m in MERGES)]
    ids = {token: id for id, token in enumerate(tokens)}
    return keras_nlp.tokenizers.GPT2Tokenizer(ids, MERGES)


def bert(**options):
    return keras_nlp.tokenizers.BertTokenizer(WORDS, lowercase=True, **options)


def sentence_piece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES[:4]),
        model_writer=model,
        vocab_size=272,
        byte_fallback=True,
        minloglevel=2,
    )
    return keras_nlp.tokenizers.SentencePieceTokenizer(model.getvalue(), **options)


MAKE = dict(zip(KINDS, [gpt2, bert, sentence_piece], strict=True))


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: KerasHubTokenizer(make()) for kind, make in MAKE.items()}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


TEXTS = [*LINES, "The CAT's mat.", "über  ☃ 猫", "don't\tsee 12345!", " ?!"]


def test_the_ids_of_gpt2(tokenizers):
    tokenizer = tokenizers["GPT2Tokenizer"]
    expected = {
        "the cat": ["the", "Ġcat"],
        " the": ["Ġthe"],
        "é": ["Ã", "©"],
        "sat\n": ["sa", "t", "Ċ"],
    }
    ids = tokenizer.tokenize([*expected]).to_list()
    named = [[*map(tokenizer.id_to_token, row)] for row in ids]
    assert named == [*expected.values()]
    assert ids == [[*map(tokenizer.token_to_id, row)] for row in expected.values()]


def test_ids_and_texts_are_those_of_keras_hub(kind, tokenizers):
    theirs, tokenizer = MAKE[kind](), tokenizers[kind]
    data = tf.data.Dataset.from_tensors(TEXTS).map(theirs.tokenize)
    expected = next(iter(data))
    found = tokenizer.tokenize(TEXTS)
    assert found.to_list() == expected.to_list()
    # Outside graphs KerasHub uses other implementations.
    assert tokenizer.tokenize(LINES).to_list() == theirs.tokenize(LINES)
    texts = [text.decode() for text in tokenizer.detokenize(found).numpy()]
    (in_graph,) = tf.data.Dataset.from_tensors(expected).map(theirs.detokenize)
    assert texts == [text.decode() for text in in_graph.numpy()]
    assert texts[:4] == LINES[:4] == theirs.detokenize(found.to_list())[:4]
    assert tokenizer.tokenize([]).nrows() == 0


def test_odd_texts_have_the_tokens_of_gpt2():
    merges = [*MERGES, "č Ċ", "à ¥", "Ċ Ċ", "Â ħ"]
    tokens = ["<|endoftext|>", *BYTES, *(m.replace(" ", "") for m in merges)]
    ids = {token: id for id, token in enumerate(tokens)}
    expected = ByteLevelBPETokenizer(ids, [tuple(m.split(" ")) for m in merges])
    tokenizer = KerasHubTokenizer(keras_nlp.tokenizers.GPT2Tokenizer(ids, merges))
    texts = [
        "a\r\nb\r\n",
        "a\n\nb",
        "a\x00b\x00",
        "the\x85's\x85\x85 cat",
        "x ६६",
        " \u2003the",
    ]
    rows = tokenizer.tokenize(texts)
    assert rows.to_list() == [expected.encode(text).ids for text in texts]
    assert [text.decode() for text in tokenizer.detokenize(rows).numpy()] == texts
    assert (tokenizer.end_token_id, tokenizer.pad_token_id) == (0, len(tokens))


def test_special_ids(tokenizers):
    """GPT-2 has no padding and no unknown token: both are new ids."""
    size = 257 + len(MERGES)
    expected = {
        "GPT2Tokenizer": (size, size + 1, 1, 1, size + 2),
        "BertTokenizer": (0, 1, 2, 3, len(WORDS)),
        "SentencePieceTokenizer": (272, 0, 1, 2, 273),
    }
    for kind, tokenizer in tokenizers.items():
        found = tokenizer.pad_token_id, tokenizer.unknown_token_id
        found += tokenizer.start_token_id, tokenizer.end_token_id
        assert (*found, tokenizer.vocabulary_size) == expected[kind]
        names = [*map(tokenizer.id_to_token, found)]
        assert (*names,) == tokenizer.special_tokens
    rows = tokenizers["BertTokenizer"].tokenize(["the"], add_start=True, add_end=True)
    assert rows.to_list() == [[2, 5, 3]]


def test_special_ids_that_collide():
    with pytest.raises(ValueError, match="must differ, .*`end_token_id=0`"):
        KerasHubTokenizer(bert(), pad_token_id=0, end_token_id=0)


def test_given_special_ids():
    plain = keras_nlp.tokenizers.WordPieceTokenizer(WORDS)
    tokenizer = KerasHubTokenizer(plain, pad_token_id=0, start_token_id=np.int64(0))
    assert (tokenizer.pad_token_id, tokenizer.unknown_token_id) == (0, 1)
    assert tokenizer.start_token_id == 0
    assert tokenizer.end_token_id == len(WORDS)
    assert tokenizer.get_vocabulary() == [*WORDS, "</s>"]
    message = "`pad_token_id` must be the id .* received `pad_token_id=5`, .* 'the'"
    with pytest.raises(ValueError, match=message):
        KerasHubTokenizer(bert(), pad_token_id=5)
    message = "`end_token_id` must be from 0 to 12, .* received `end_token_id=13`"
    with pytest.raises(ValueError, match=message):
        KerasHubTokenizer(bert(), end_token_id=13)


def test_text_is_never_converted_to_a_special_token(tokenizers):
    gpt2 = tokenizers["GPT2Tokenizer"]
    row = gpt2.tokenize(["a<|endoftext|><pad>"]).to_list()[0]
    assert row[1] == gpt2.unknown_token_id
    assert gpt2.detokenize([row]).numpy()[0] == b"a<pad>"
    spelled = KerasHubTokenizer(bert(special_tokens_in_strings=True))
    assert spelled.tokenize(["the [SEP] [MASK]"]).to_list() == [[5, 1, 4]]


def test_incomplete_characters_become_valid_text(tokenizers):
    """A model may generate the first byte of a character without the others."""
    for kind in ("GPT2Tokenizer", "SentencePieceTokenizer"):
        tokenizer = tokenizers[kind]
        row = tokenizer.tokenize(["☃"]).to_list()[0]
        text = tokenizer.detokenize([row[:-1]]).numpy()[0].decode().strip()
        assert text and set(text) == {"\ufffd"}


def reloaded(tokenizer, tmp_path, how):
    if how == "pickle":
        return pickle.loads(pickle.dumps(tokenizer))
    if how == "Keras":
        config = json.dumps(keras.saving.serialize_keras_object(tokenizer))
        return keras.saving.deserialize_keras_object(json.loads(config))
    tokenizer.save(tmp_path / "tokenizer.json")
    return Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("kind", "how"), [*zip(KINDS, ["file", "Keras", "pickle"], strict=True)]
)
def test_saving(kind, how, tokenizers, tmp_path):
    tokenizer = tokenizers[kind]
    copy = reloaded(tokenizer, tmp_path, how)
    assert type(copy.tokenizer) is type(tokenizer.tokenizer)
    assert copy.get_config() == tokenizer.get_config()
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()
    assert copy.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()


@pytest.mark.parametrize(
    "change",
    [
        {"class_name": "WhisperTokenizer", "vocabulary": "/etc/hostname"},
        {"class_name": "Tokenizer"},
        {"settings": {"special_tokens": "/etc/hostname"}},
        {"vocabulary": None},
    ],
)
def test_a_file_cannot_name_other_files_or_classes(change, tokenizers, tmp_path):
    content = {"class_name": "KerasHubTokenizer"}
    config = tokenizers["BertTokenizer"].get_config()
    content["config"] = {**config, "tokenizer": {**config["tokenizer"], **change}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="`path` must be a file that"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bert(sequence_length=7),
            "have `sequence_length=None`; received a Bert",
        ),
        (
            lambda: sentence_piece(add_eos=True),
            "must have `add_eos=False`; received a ",
        ),
        (lambda: bert(dtype="string"), '`dtype="int32"`; received a BertTokenizer'),
        (lambda: keras_nlp.tokenizers.ByteTokenizer(), "must be a BytePairTokenizer, "),
        (lambda: WordTokenizer.train(lines=LINES), "must be a BytePair"),
    ],
)
def test_tokenizers_that_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        KerasHubTokenizer(make())


def test_a_tokenizer_of_keras_hub_alone_is_refused():
    message = (
        "received `source_tokenizer=<GPT2Tokenizer.*Pass `source_tokenizer=KerasHub"
    )
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**SIZES, source_tokenizer=gpt2())


def test_subword_sampling_is_refused(tokenizers):
    tokenizer = tokenizers["SentencePieceTokenizer"]
    both = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    with pytest.raises(ValueError, match="unless .* and a KerasHubTokenizer"):
        parallel_dataset(pairs=[("a", "b")], source_sampling=0.1, **both)


def test_banned_texts(kind, tokenizers):
    """The texts of tokens join to the text of an output."""
    tokenizer = tokenizers[kind]
    texts = tokenizer.token_texts()
    rows = tokenizer.tokenize([*LINES[:4], "猫 ☃"]).to_list()
    joined = [b"".join(texts[id] for id in row).decode() for row in rows]
    assert [text.strip() for text in joined[:4]] == LINES[:4]
    assert kind == "BertTokenizer" or joined[4].strip() == "猫 ☃"
    assert BannedTexts(["cat"], tokenizer)


@pytest.mark.slow
def test_saved_models_of_each_kind(tokenizers, tmp_path):
    """A process that has only TensorFlow and tensorflow-text returns the same."""

    class Echo(tf.Module):
        def __init__(self, tokenizer):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            rows = self.tokenizer.tokenize(texts, add_end=True)
            return rows.to_tensor(-1), self.tokenizer.detokenize(rows)

    for kind, tokenizer in tokenizers.items():
        tf.saved_model.save(Echo(tokenizer), str(tmp_path / kind))
    texts = [*TEXTS, "a<|endoftext|>b"]
    code = f"""
import sys, json, tensorflow as tf, tensorflow_text
for kind in {KINDS!r}:
    ids, texts = tf.saved_model.load(sys.argv[1] + "/" + kind).serve({texts!r})
    print(json.dumps([ids.numpy().tolist(), [t.decode() for t in texts.numpy()]]))
assert "keras_transformer" not in sys.modules
import keras_transformer.text
assert "keras_nlp" not in sys.modules and "keras_hub" not in sys.modules
"""
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    for line, tokenizer in zip(
        process.stdout.splitlines(), tokenizers.values(), strict=True
    ):
        rows = tokenizer.tokenize(texts, add_end=True)
        expected = [text.decode() for text in tokenizer.detokenize(rows).numpy()]
        assert json.loads(line) == [rows.to_tensor(-1).numpy().tolist(), expected]


SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
SIZES |= {"max_source_length": 17, "max_target_length": 5}
SEARCH = GreedySearch()


@pytest.mark.slow
def test_a_model_is_saved_with_its_tokenizer(tokenizers, tmp_path):
    tokenizer = tokenizers["GPT2Tokenizer"]
    both = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    model = Seq2Seq(**SIZES, **both)
    rng = np.random.default_rng(1)  # so that the outputs differ
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    expected = model.generate(LINES, SEARCH)
    assert len(set(expected)) > 2
    data = parallel_dataset(pairs=[("the cat", "a mat")], **both)
    ((inputs, targets),) = data.dataset
    loss = LabelSmoothedCrossEntropy(pad_token_id=tokenizer.pad_token_id)
    assert np.isfinite(loss(targets, model(inputs)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    model.save_to_preset(tmp_path / "preset")
    preset = Seq2Seq.from_preset(str(tmp_path / "preset"))
    assert (tmp_path / "preset" / "tokenizer.json").exists()
    for copy in (loaded, preset):
        assert copy.source_tokenizer.get_config() == tokenizer.get_config()
        for one, other in zip(copy.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_the_saved_model_of_a_model(tokenizers, tmp_path):
    """Which `export` itself compares with `generate`."""
    both = dict.fromkeys(
        ("source_tokenizer", "target_tokenizer"), tokenizers["GPT2Tokenizer"]
    )
    Seq2Seq(**SIZES, **both).export(tmp_path / "1", SEARCH, check_texts=LINES)
    card = (tmp_path / "1" / "README.md").read_text("utf-8")
    assert re.search(r"\| source vocabulary \| 267, KerasHubTokenizer", card)

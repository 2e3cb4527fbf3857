import json
import pathlib
import re

import keras
import marian_folders
import pytest
import sentencepiece
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.interoperability import load_pretrained
from keras_transformer.text import MarianTokenizer, Tokenizer

pytestmark = pytest.mark.once("torch")

TEXTS = [
    *marian_folders.SOURCES,
    "",
    " ",
    ">>deu<< a cat",
    ">>deu<<",
    ">>fra<< a cat",
    ">>a\ncat<< a cat",
    ">>deu<<<< a >>deu<< cat",
    ">> a cat",
    "a >>deu<< cat",
    "two zebras ☃☃ see\t x\u3000y",
    "ＡB ﬁne ½",
]


@pytest.fixture(scope="module", params=[False, True], ids=["shared", "separate"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian") / "model"
    marian_folders.write_tokenizers(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    return marian_folders.tokenizer_of(folder)


@pytest.fixture(scope="module")
def tokenizers(folder):
    """The tokenizers of both sides, built without `load_pretrained`."""
    files = [folder / "vocab.json", folder / "target_vocab.json"]
    files = [file if file.exists() else files[0] for file in files]
    return [
        MarianTokenizer((folder / f"{side}.spm").read_bytes(), ordered(file))
        for side, file in zip(("source", "target"), files, strict=True)
    ]


def ordered(file):
    ids = json.loads(file.read_text())
    return sorted(ids, key=ids.get)


def test_ids_are_those_of_transformers(tokenizers, theirs):
    source, target = tokenizers
    ids = source.tokenize(TEXTS, add_end=True).to_list()
    assert ids == theirs(TEXTS).input_ids
    assert len({i for row in ids for i in row}) > 15
    ids = target.tokenize(TEXTS, add_end=True).to_list()
    assert ids == theirs(text_target=TEXTS).input_ids


def test_the_tokens_of_the_page_on_ctranslate2(folder, theirs):
    page = pathlib.Path(__file__).parents[2] / "docs" / "ctranslate2.md"
    (code,) = re.findall(r"^(def split.*?)^\n\n", page.read_text("utf-8"), re.M | re.S)
    source = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    namespace = {"re": re, "source": source}
    exec(code, namespace)
    assert [namespace["split"](text) for text in TEXTS] == [
        *map(theirs.tokenize, TEXTS)
    ]
    assert namespace["split"](">>deu<< a cat")[0] == ">>deu<<"


def test_language_tokens(tokenizers):
    source = tokenizers[0]
    ids = source.language_token_ids
    assert [source.id_to_token(i) for i in ids] == [">>deu<<"]
    unknown = {">>fra<< a cat": ">>fra<<", ">>a\ncat<< a cat": ">>a\ncat<<"}
    for text in TEXTS:
        (row,) = source.tokenize([text]).to_list()
        for given in (text, text.encode()):
            assert source.unknown_language_token(given, row) == unknown.get(text)


def test_in_a_graph(tokenizers):
    source, _ = tokenizers
    traced = tf.function(source.tokenize)(tf.constant(TEXTS))
    assert traced.to_list() == source.tokenize(TEXTS).to_list()
    assert source.tokenize(tf.constant([], tf.string)).to_list() == []


def test_texts_are_those_of_transformers(tokenizers, theirs):
    target, pad = tokenizers[1], theirs.pad_token_id
    rows = [[i, (7 * i) % 23, (5 * i) % 19, 3] for i in range(target.vocabulary_size)]
    rows = [[i for i in row if i not in (0, pad)] for row in rows]
    expected = theirs.batch_decode(rows, skip_special_tokens=True)
    assert any("ä" in text for text in expected) and len(set(expected)) > 20
    ended = [[pad, *row, 0, 5, pad] for row in rows]
    found = target.detokenize(tf.ragged.constant(ended, dtype=tf.int32)).numpy()
    assert [text.decode() for text in found] == expected


def test_the_start_token_is_padding(tokenizers):
    for tokenizer in tokenizers:
        names = tokenizer.get_vocabulary()
        assert names[tokenizer.pad_token_id] == "<pad>"
        assert tokenizer.start_token_id == tokenizer.pad_token_id
        assert names[tokenizer.end_token_id] == "</s>"
        assert names[tokenizer.unknown_token_id] == "<unk>"


@pytest.mark.parametrize("folder", [False], ids=["shared"], indirect=True)
def test_operations_are_those_of_a_stock_server(tokenizers, tmp_path):
    class Served(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            return self.tokenizer.detokenize(self.tokenizer.tokenize(texts))

    served = Served()
    served.tokenizer = tokenizers[0]
    tf.saved_model.save(served, tmp_path / "1")
    graph = saved_model_pb2.SavedModel()
    graph.ParseFromString((tmp_path / "1" / "saved_model.pb").read_bytes())
    definition = graph.meta_graphs[0].graph_def
    nodes = [node for f in definition.library.function for node in f.node_def]
    names = {f.signature.name for f in definition.library.function}
    used = {node.op for node in (*nodes, *definition.node)} - names
    pieces = {op for op in used if op.startswith("Sentencepiece")}
    assert len(pieces) == 3 and not used - pieces - set(dir(tf.raw_ops))
    assert not any("PyFunc" in op for op in used)
    loaded = tf.saved_model.load(tmp_path / "1").serve(tf.constant(["a dog", ""]))
    assert loaded.numpy().tolist() == [b"a dog", b""]


def test_no_text_spells_a_special_token(tokenizers):
    source = tokenizers[0]
    for text in ("</s>", "<pad>", "a <pad> b</s>", ">></s><<", ">><pad><< a"):
        ids = source.tokenize([text]).to_list()[0]
        assert ids and not {source.pad_token_id, source.end_token_id} & set(ids)


def test_the_configuration_is_complete(tokenizers, tmp_path):
    source = tokenizers[0]
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(source)))
    restored = keras.saving.deserialize_keras_object(config)
    assert restored.tokenize(TEXTS).to_list() == source.tokenize(TEXTS).to_list()
    assert restored.proto == source.proto
    source.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.tokenize(TEXTS).to_list() == source.tokenize(TEXTS).to_list()


@pytest.mark.parametrize(
    "vocabulary, message",
    [
        (["</s>", "<unk>", "a"], r"must contain the special .* without \['<pad>'"),
        (
            ["</s>", "<unk>", "a", "a", "<pad>"],
            r"must contain each token once; .* repeats \['a'\]",
        ),
    ],
)
def test_bad_vocabulary(tokenizers, vocabulary, message):
    with pytest.raises(ValueError, match=f"`vocabulary` {message}"):
        MarianTokenizer(tokenizers[0].proto, vocabulary)


def test_describe(tokenizers):
    source, _ = tokenizers
    tokenizer = MarianTokenizer(
        source.proto, ["</s>", "<unk>", ">>deu<<", "a", "<pad>"]
    )
    assert tokenizer.describe() == {
        "vocabulary_size": 5,
        "model_type": "unigram",
        "language_tokens": 1,
        "pad_token_id": 4,
        "unknown_token_id": 1,
        "start_token_id": 4,
        "end_token_id": 0,
        "tokens": [">>deu<<", "a"],
    }
    assert repr(tokenizer).startswith("<MarianTokenizer vocabulary_size=5, model_type=")


def test_an_id_without_a_token_has_a_name(tmp_path):
    folder = tmp_path / "model"
    marian_folders.random_model(folder)
    path = folder / "vocab.json"
    ids = json.loads(path.read_text())
    missing = ids.pop(list(ids)[7])
    path.write_text(json.dumps(ids))
    tokenizer = load_pretrained(folder).source_tokenizer
    assert tokenizer.id_to_token(missing) == f"<unused {missing}>"
    assert tokenizer.token_to_id("<pad>") == ids["<pad>"]

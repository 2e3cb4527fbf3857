import gzip
import io
import itertools
import json
import pickle
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.text import (
    CharacterTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordTokenizer,
    read_lines,
)

LINES = [
    "a man rides a red bicycle",
    "two dogs run over the grass",
    "a woman reads the red book",
    "Zwei Hunde laufen über die Straße",
]


@pytest.fixture(
    scope="module", params=[SentencePieceTokenizer, CharacterTokenizer, WordTokenizer]
)
def tokenizer(request):
    size = 61 if request.param is SentencePieceTokenizer else None
    return request.param.train(lines=LINES, vocabulary_size=size)


# What holds for every tokenizer.


def test_round_trip(tokenizer):
    token_ids = tokenizer.tokenize(LINES)
    assert token_ids.dtype == tf.int32
    assert token_ids.shape.as_list() == [len(LINES), None]
    texts = tokenizer.detokenize(token_ids).numpy()
    assert [text.decode() for text in texts] == LINES


def test_special_ids_lead_the_vocabulary(tokenizer):
    assert tokenizer.get_vocabulary()[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.pad_token_id == 0
    assert tokenizer.unknown_token_id == 1
    assert tokenizer.start_token_id == 2
    assert tokenizer.end_token_id == 3


def test_tokens_and_ids_are_inverse(tokenizer):
    vocabulary = tokenizer.get_vocabulary()
    assert len(vocabulary) == len(set(vocabulary)) == tokenizer.vocabulary_size
    for id, token in enumerate(vocabulary):
        assert tokenizer.id_to_token(id) == token
        assert tokenizer.token_to_id(token) == id
    assert tokenizer.token_to_id("語語") == tokenizer.unknown_token_id


@pytest.mark.parametrize("beyond", [-1, 0])
def test_id_outside_the_vocabulary(tokenizer, beyond):
    id = beyond if beyond < 0 else tokenizer.vocabulary_size
    with pytest.raises(ValueError, match=f"`id` must be from 0 .* `id={id}`"):
        tokenizer.id_to_token(id)


def test_ids_outside_the_vocabulary_are_unknown(tokenizer):
    size, unknown = tokenizer.vocabulary_size, tokenizer.unknown_token_id
    expected = tokenizer.detokenize([[size - 1, unknown, unknown]]).numpy()
    assert tokenizer.detokenize([[size - 1, size, -7]]).numpy() == expected


def test_start_and_end(tokenizer):
    plain = tokenizer.tokenize(LINES[:2]).to_list()
    framed = tokenizer.tokenize(LINES[:2], add_start=True, add_end=True).to_list()
    ended = tokenizer.tokenize(LINES[:2], add_end=True).to_list()
    assert framed == [[2, *row, 3] for row in plain]
    assert ended == [[*row, 3] for row in plain]


def test_empty_text(tokenizer):
    assert tokenizer.tokenize(["", LINES[0]]).to_list()[0] == []
    assert tokenizer.tokenize([""], add_end=True).to_list() == [[3]]
    assert tokenizer.tokenize([]).nrows() == 0
    assert tokenizer.detokenize(np.zeros((2, 3), "int32")).numpy().tolist() == [b""] * 2
    assert tokenizer.detokenize(np.zeros((2, 0), "int32")).numpy().tolist() == [b""] * 2


def test_no_text_spells_a_special_token(tokenizer):
    special = {0, 2, 3}
    for row in tokenizer.tokenize(["<pad> <s> </s>", "</s>"]).to_list():
        assert row
        assert not special & set(row)


def test_detokenize_drops_padding_and_what_follows_the_end(tokenizer):
    row = tokenizer.tokenize(LINES[:1]).to_list()[0]
    noise = [0, 2, *row, 0, 3, *row, 3]
    assert tokenizer.detokenize([noise]).numpy()[0].decode() == LINES[0]


@pytest.mark.parametrize(
    "convert",
    [
        lambda rows: rows,
        lambda rows: rows.to_tensor(0),
        lambda rows: rows.to_tensor(0).numpy().astype("int64"),
        lambda rows: keras.ops.convert_to_tensor(rows.to_tensor(0).numpy()),
    ],
    ids=["ragged", "dense", "numpy", "backend"],
)
def test_detokenize_takes_any_array(tokenizer, convert):
    rows = tokenizer.tokenize(LINES[:3], add_end=True)
    texts = tokenizer.detokenize(convert(rows)).numpy()
    assert [text.decode() for text in texts] == LINES[:3]


@pytest.mark.parametrize("convert", [tuple, np.array, tf.constant])
def test_tokenize_takes_any_array(tokenizer, convert):
    expected = tokenizer.tokenize(LINES).to_list()
    assert tokenizer.tokenize(convert(LINES)).to_list() == expected


def test_single_text_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"`texts` must be a batch .* in a list"):
        tokenizer.tokenize("a man")


def test_inside_a_data_pipeline(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices(LINES).batch(3)
    dataset = dataset.map(tokenizer.tokenize).map(tokenizer.detokenize).unbatch()
    assert [text.decode() for text in dataset.as_numpy_iterator()] == LINES


def test_outlives_a_cleared_session(tokenizer):
    """TensorFlow drops its cached kernels, and with them what only they hold."""
    expected = tokenizer.tokenize(LINES).to_list()
    compiled = tf.function(tokenizer.tokenize)
    compiled(tf.constant(LINES))
    tf.random.set_seed(3)
    keras.utils.clear_session()
    assert tokenizer.tokenize(LINES).to_list() == expected
    assert compiled(tf.constant(LINES)).to_list() == expected


def test_inside_a_saved_model(tokenizer, tmp_path):
    class Echo(tf.Module):
        def __init__(self, tokenizer):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            return self.tokenizer.detokenize(self.tokenizer.tokenize(texts).to_tensor())

    tf.saved_model.save(Echo(tokenizer), str(tmp_path))
    texts = tf.saved_model.load(str(tmp_path)).serve(tf.constant([*LINES, ""]))
    assert [text.decode() for text in texts.numpy()] == [*LINES, ""]


def test_configuration_holds_everything(tokenizer):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(tokenizer)))
    name = type(tokenizer).__name__
    assert config["registered_name"] == f"keras_transformer>{name}"
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(tokenizer)
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()
    assert copy.tokenize(LINES).to_list() == tokenizer.tokenize(LINES).to_list()


def test_saved_and_loaded(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    for loader in (Tokenizer, type(tokenizer)):
        loaded = loader.load(path)
        assert type(loaded) is type(tokenizer)
        assert loaded.get_config() == tokenizer.get_config()


def test_pickled_for_other_processes(tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.get_config() == tokenizer.get_config()
    text = tokenizer.detokenize(tokenizer.tokenize(["abc"]))
    np.testing.assert_array_equal(copy.detokenize(copy.tokenize(["abc"])), text)


def test_failed_save_leaves_the_old_file(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_text("old")
    monkeypatch.setattr(
        type(tokenizer), "get_config", lambda self: {"unserialisable": object()}
    )
    with pytest.raises(TypeError, match="not JSON serializable"):
        tokenizer.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# Loading what is no tokenizer.


def test_loading_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        Tokenizer.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "content",
    ['{"class_na', "[]", '{"class_name": "Nothing", "config": {}}', "{}", "\x80"],
)
def test_loading_a_damaged_file(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=r"`path` must be a file .*tokenizer\.json"):
        Tokenizer.load(path)


def test_loading_another_class(tmp_path):
    path = tmp_path / "tokenizer.json"
    WordTokenizer.train(lines=LINES).save(path)
    with pytest.raises(ValueError, match="holds a WordTokenizer"):
        CharacterTokenizer.load(path)


# Training.


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_sentence_piece_training_is_deterministic(model_type):
    def train(seed):
        return SentencePieceTokenizer.train(
            lines=LINES * 5,
            vocabulary_size=41,
            model_type=model_type,
            max_sentences=13,
            seed=seed,
        )

    assert train(3).get_config() == train(3).get_config()
    assert train(3).vocabulary_size == 41


def test_sentence_piece_learns_from_long_lines_too():
    lines = ["a short line"] * 50 + ["Ж" * 4193] * 50
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=16)
    (ids,) = tokenizer.tokenize(["Ж"]).to_list()
    assert tokenizer.unknown_token_id not in ids


def test_sentence_piece_sample_depends_on_the_seed():
    lines = ["".join(word) for word in itertools.product("stkb", "aeiou", "nmrldfg")]
    vocabularies = {
        tuple(
            SentencePieceTokenizer.train(
                lines=lines,
                vocabulary_size=37,
                max_sentences=97,
                seed=seed,
            ).get_vocabulary()
        )
        for seed in range(5)
    }
    assert len(vocabularies) > 1


def test_sentence_piece_lowercase():
    tokenizer = SentencePieceTokenizer.train(
        lines=LINES, vocabulary_size=53, lowercase=True
    )
    texts = tokenizer.detokenize(tokenizer.tokenize(["ZWEI Hunde"])).numpy()
    assert texts.tolist() == [b"zwei hunde"]


LOOKS = "½ litre™，a\u00a0b"


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, "1⁄2 litreTM,a b"),
        ({"normalization": "nfkc"}, "1⁄2 litreTM,a b"),
        ({"normalization": "nfkc", "lowercase": True}, "1⁄2 litretm,a b"),
        ({"normalization": "identity"}, LOOKS),
    ],
)
def test_sentence_piece_normalization(options, expected):
    tokenizer = SentencePieceTokenizer.train(
        lines=[LOOKS, LOOKS.lower()], vocabulary_size=24, **options
    )
    again = SentencePieceTokenizer.from_config(tokenizer.get_config())
    for each in (tokenizer, again):
        (text,) = each.detokenize(each.tokenize([f" {LOOKS}  "])).numpy()
        assert text.decode() == expected


def test_sentence_piece_normalization_that_is_refused():
    message = "`normalization` must be \"nmt_nfkc\", .*`normalization='nfc'`"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(lines=LINES, normalization="nfc")
    with pytest.raises(ValueError, match="`normalization` must .*`lowercase=True`"):
        SentencePieceTokenizer.train(
            lines=LINES, normalization="identity", lowercase=True
        )


def test_sentence_piece_leaves_out_the_rarest_characters():
    lines = ["abcd" * 25] * 10 + ["語"]
    all_of_them, most = (
        SentencePieceTokenizer.train(
            lines=lines, vocabulary_size=12, character_coverage=coverage
        )
        for coverage in (1.0, 0.995)
    )
    assert all_of_them.unknown_token_id not in all_of_them.tokenize(["語"]).to_list()[0]
    assert most.unknown_token_id in most.tokenize(["語"]).to_list()[0]


def test_more_characters_than_the_vocabulary_has_room_for():
    message = (
        r"room for each character .* (\d+) tokens .*`vocabulary_size=9`\. .* lower "
        r"`character_coverage`.*`character_coverage=1.0`"
    )
    with pytest.raises(ValueError, match=message) as error:
        SentencePieceTokenizer.train(lines=["abcdefgh"], vocabulary_size=9)
    size = int(re.search(message, str(error.value))[1])
    tokenizer = SentencePieceTokenizer.train(lines=["abcdefgh"], vocabulary_size=size)
    assert tokenizer.vocabulary_size == size


def test_most_frequent_first_then_alphabetical():
    tokenizer = WordTokenizer.train(lines=["b c a c", "d </s> Ä"])
    assert tokenizer.get_vocabulary()[4:] == ["c", "a", "b", "d", "Ä"]
    tokenizer = CharacterTokenizer.train(lines=["abcc ", "Ä"], lowercase=True)
    assert tokenizer.get_vocabulary()[4:] == ["c", " ", "a", "b", "ä"]
    assert tokenizer.tokenize(["ÄC"]).to_list() == [[8, 4]]


def test_limited_vocabulary_and_unknown_tokens():
    tokenizer = WordTokenizer.train(lines=["b c a c"], vocabulary_size=6)
    assert tokenizer.get_vocabulary()[4:] == ["c", "a"]
    token_ids = tokenizer.tokenize(["c b  a"])
    assert token_ids.to_list() == [[4, 1, 5]]
    assert tokenizer.detokenize(token_ids).numpy().tolist() == [b"c <unk> a"]


def test_characters_are_code_points():
    tokenizer = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", "é", "語"])
    assert tokenizer.tokenize(["語é!", b"\xff"]).to_list() == [[5, 4, 1], [1]]


def test_training_files(tmp_path):
    plain, zipped = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("\n".join(LINES[:2]) + "\n", "utf-8")
    zipped.write_bytes(gzip.compress("\n".join(LINES[2:]).encode()))
    for cls, size in ((SentencePieceTokenizer, 61), (WordTokenizer, 13)):
        from_files = cls.train([plain, str(zipped)], size)
        from_lines = cls.train(lines=LINES, vocabulary_size=size)
        assert from_files.get_config() == from_lines.get_config()
    assert WordTokenizer.train(plain).token_to_id("dogs") > 3


@pytest.mark.parametrize("cls", [SentencePieceTokenizer, WordTokenizer])
class TestTrainingErrors:
    def test_files_or_lines(self, cls):
        with pytest.raises(ValueError, match="Exactly one of `files` and `lines`"):
            cls.train()
        with pytest.raises(ValueError, match="and also `lines`"):
            cls.train("a.txt", lines=LINES)
        with pytest.raises(ValueError, match="Pass a path as `files`"):
            cls.train(lines="a.txt")

    def test_missing_file(self, cls, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"none\.txt"):
            cls.train(tmp_path / "none.txt")

    def test_empty_text(self, cls, tmp_path):
        path = tmp_path / "empty.txt"
        path.touch()
        with pytest.raises(ValueError, match=r"empty\.txt` is empty"):
            cls.train(path)
        with pytest.raises(ValueError, match="blank lines only"):
            cls.train(lines=["", " "])

    def test_invalid_utf8(self, cls, tmp_path):
        path = tmp_path / "latin.txt"
        path.write_bytes("gut\nsüß\n".encode("latin1"))
        with pytest.raises(ValueError, match=r"line 2 of `.*latin\.txt` .*iconv"):
            cls.train(path)

    @pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
    def test_utf16(self, cls, tmp_path, codec):
        path = tmp_path / "windows.txt"
        path.write_bytes("good\n".encode(codec))
        with pytest.raises(ValueError, match=r"windows\.txt` .*iconv -f utf-16"):
            cls.train(path)

    def test_too_small_a_vocabulary(self, cls):
        with pytest.raises(ValueError, match="`vocabulary_size=4`"):
            cls.train(lines=LINES, vocabulary_size=4)


def test_too_large_a_vocabulary():
    message = r"`vocabulary_size=997`.* too high \(997\).* value <= \d+"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(lines=LINES, vocabulary_size=997)


@pytest.mark.parametrize("size", [0, -1])
def test_empty_sample(size):
    with pytest.raises(
        ValueError, match=f"`max_sentences` must .* `max_sentences={size}`"
    ):
        SentencePieceTokenizer.train(lines=LINES, max_sentences=size)


@pytest.mark.parametrize("coverage", [0.0, 0.97, 1.5])
def test_share_of_the_characters(coverage):
    with pytest.raises(ValueError, match=f"`character_coverage` must .*={coverage}`"):
        SentencePieceTokenizer.train(lines=LINES, character_coverage=coverage)


def test_sentence_piece_says_what_is_wrong():
    with pytest.raises(
        ValueError, match=r"`vocabulary_size=0`\. .* says: .*vocab_size"
    ):
        SentencePieceTokenizer.train(lines=LINES, vocabulary_size=0)


def test_unknown_model_type():
    with pytest.raises(ValueError, match='`model_type` must be "bpe" or "unigram"'):
        SentencePieceTokenizer.train(lines=LINES, model_type="word")


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_sentence_piece_is_the_same_inside_of_graphs(model_type):
    tokenizer = SentencePieceTokenizer.train(
        lines=LINES * 3, vocabulary_size=37, model_type=model_type, lowercase=True
    )
    texts = [*LINES, "", "  A \t rïde ", "語語 red", "e\u0301 ﬁ Ⅳ", "\ufeff<s>", "a\0b"]
    texts = [*(text.encode() for text in texts), b"a\xff\xc3", b"\xed\xa0\x80"]
    compiled = tf.function(tokenizer.tokenize)
    expected = compiled(tf.constant(texts), add_end=True)
    found = tokenizer.tokenize(texts, add_end=True)
    assert found.to_list() == expected.to_list()
    assert found.dtype == expected.dtype
    assert found.row_splits.dtype == expected.row_splits.dtype


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_subwords(model_type):
    tokenizer = SentencePieceTokenizer.train(
        lines=LINES, vocabulary_size=37, model_type=model_type
    )
    subwords = tokenizer.subwords()
    assert subwords.model_type == model_type
    assert subwords.tokens == tokenizer.get_vocabulary()
    assert subwords.ordinary == [False] * 4 + [True] * 33
    assert len(set(subwords.scores)) > 2
    assert max(subwords.scores) <= 0


# Vocabularies and models made elsewhere.


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["a", "b"], "`vocabulary` must hold the special tokens"),
        (["a", "<pad>", "<unk>", "<s>", "</s>"], "`vocabulary` must begin with"),
        (["<pad>", "<unk>", "<s>", "</s>", "a", "b", "a"], r"repeats \['a'\]"),
    ],
)
@pytest.mark.parametrize("cls", [CharacterTokenizer, WordTokenizer])
def test_bad_vocabulary(cls, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        cls(vocabulary)


def train_elsewhere(**options):
    import sentencepiece

    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=proto,
        vocab_size=61,
        model_type="bpe",
        minloglevel=2,
        **options,
    )
    return proto.getvalue()


def test_ids_are_read_from_the_model():
    proto = train_elsewhere(pad_id=60, unk_id=0, bos_id=1, eos_id=2)
    tokenizer = SentencePieceTokenizer(proto)
    assert tokenizer.pad_token_id == 60
    assert tokenizer.unknown_token_id == tokenizer.token_to_id("語") == 0
    assert (tokenizer.start_token_id, tokenizer.end_token_id) == (1, 2)
    rows = tokenizer.tokenize(LINES, add_start=True, add_end=True)
    texts = tokenizer.detokenize(rows.to_tensor(60)).numpy()
    assert [text.decode() for text in texts] == LINES


def test_model_without_padding():
    with pytest.raises(ValueError, match=r"without \['<pad>'\].*--pad_id=0"):
        SentencePieceTokenizer(train_elsewhere())


@pytest.mark.parametrize("proto", [b"no model", "bm8gbW9kZWw=", "no base64 §", b""])
def test_no_model(proto):
    with pytest.raises(ValueError, match="`proto` must be a serialised SentencePiece"):
        SentencePieceTokenizer(proto)


# Lines.


def test_lines_lose_only_their_ends(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff a \r\n\n\u2028b\tc\rd".encode())
    assert list(read_lines(path)) == [" a ", "", "\u2028b\tc\rd"]

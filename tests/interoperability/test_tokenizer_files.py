"""Tokenizer files in the form of Hugging Face, read, written and read again."""

import json

import keras_nlp
import pytest
import sentencepiece
from hugging_face_tokenizers import (
    KINDS,
    LLAMA2,
    TOKENS,
    TRAINING,
    merges_of,
    parsed,
    piece_model,
    random_texts,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from keras_transformer import (
    KerasHubTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)
from keras_transformer.interoperability.tokenizer_files import (
    read_tokenizer,
    write_tokenizer,
)

pytestmark = pytest.mark.once
TEXTS = random_texts(200, seed=2)
MODEL_TYPES = {
    **{"gpt2": "gpt2", "llama3": "llama", "qwen2": "qwen2", "smollm2": "llama"},
    **{"roberta": "roberta", "bert": "bert", "bert-cased": "distilbert"},
    **{"llama2": "llama", "llama2-first": "mistral", "t5": "t5", "mbart": "mbart"},
    "nllb": "m2m_100",
}
# The ids in front of a text and behind it, as tokens.
FRAMING = {
    **dict.fromkeys(("gpt2", "qwen2", "smollm2"), ([], [])),
    **dict.fromkeys(("bert", "bert-cased"), (["[CLS]"], ["[SEP]"])),
    **dict.fromkeys(("llama2", "llama2-first"), (["<s>"], [])),
    **{"llama3": (["<|begin_of_text|>"], []), "roberta": (["<s>"], ["</s>"])},
    **{"t5": ([], ["</s>"]), "mbart": ([], ["</s>", "en_XX"])},
    "nllb": (["eng_Latn"], ["</s>"]),
}
LANGUAGES = {"mbart": ["en_XX", "ro_RO"], "nllb": ["eng_Latn", "fra_Latn"]}


def config_of(theirs, kind, **options):
    start, end = (theirs.token_to_id(name) for name in TOKENS[kind][2:])
    config = {"model_type": MODEL_TYPES[kind], "vocab_size": theirs.get_vocab_size()}
    config |= {"bos_token_id": start, "eos_token_id": end, **options}
    if kind in ("t5", "mbart", "nllb"):
        config |= {"is_encoder_decoder": True, "decoder_start_token_id": start}
    return config


def folder_of(theirs, kind, path):
    """Writes files by transformers, as in a repository on the Hugging Face Hub."""
    pad, unknown, start, end = TOKENS[kind]
    names = {"pad_token": pad, "unk_token": unknown, "eos_token": end}
    names["cls_token" if kind.startswith("bert") else "bos_token"] = start
    if kind.startswith("bert"):
        names = {**names, "sep_token": names.pop("eos_token"), "mask_token": "[MASK]"}
    if kind in ("t5", "nllb"):
        del names["bos_token"]
    given = {name: token for name, token in names.items() if token}
    PreTrainedTokenizerFast(tokenizer_object=theirs, **given).save_pretrained(path)
    config = config_of(theirs, kind)
    (path / "config.json").write_text(json.dumps(config))
    return config


def plain_ids(tokenizer, texts=TEXTS):
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_read_write_read(kind, tmp_path):
    theirs = KINDS[kind]()
    config = folder_of(theirs, kind, tmp_path)
    loaded = read_tokenizer(tmp_path, config)
    tokenizer = loaded.tokenizer
    assert tokenizer.in_graph
    expected = plain_ids(AutoTokenizer.from_pretrained(tmp_path))
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    found = (
        *(tokenizer.pad_token_id, tokenizer.unknown_token_id),
        *(tokenizer.start_token_id, tokenizer.end_token_id),
    )
    for name, id in zip(TOKENS[kind], found, strict=True):
        own = None if name is None else theirs.token_to_id(name)
        assert id == own or (name is None and id >= theirs.get_vocab_size())
    framing = loaded.first_token_ids, loaded.last_token_ids
    assert framing == tuple(
        tuple(map(theirs.token_to_id, names)) for names in FRAMING[kind]
    )
    names = LANGUAGES.get(kind, [])
    assert loaded.language_token_ids == {
        name: theirs.token_to_id(name) for name in names
    }
    written = tmp_path / "written"
    written.mkdir()
    write_tokenizer(tokenizer, written, loaded.token_ids)
    (written / "config.json").write_text(json.dumps(config))
    again = AutoTokenizer.from_pretrained(written)
    assert plain_ids(again) == expected
    assert again("the cat")["input_ids"] == theirs.encode("the cat").ids
    assert again.eos_token_id == loaded.token_ids.get("eos")
    assert read_tokenizer(written, config)._asdict() | {"tokenizer": None} == (
        loaded._asdict() | {"tokenizer": None}
    )
    copy = read_tokenizer(written, config).tokenizer
    assert copy.get_config() == tokenizer.get_config()


def byte_pair_files(theirs, path):
    content = json.loads(theirs.to_str())
    path.mkdir(exist_ok=True)
    (path / "vocab.json").write_text(json.dumps(theirs.get_vocab()))
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "roberta"])
def test_byte_pair_files(kind, tmp_path):
    theirs = KINDS[kind]()
    byte_pair_files(theirs, tmp_path)
    if kind == "qwen2":
        tokens = theirs.get_added_tokens_decoder().items()
        added = {token.content: id for id, token in tokens}
        (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    loaded = read_tokenizer(tmp_path, config_of(theirs, kind))
    texts = [text.replace("<tool>", "") for text in TEXTS]
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert loaded.tokenizer.tokenize(texts).to_list() == expected
    expected = [[*map(theirs.token_to_id, names)] for names in FRAMING[kind]]
    assert [[*loaded.first_token_ids], [*loaded.last_token_ids]] == expected


@pytest.mark.parametrize("kind", ["bert", "bert-cased"])
def test_word_piece_file(kind, tmp_path):
    theirs = KINDS[kind]()
    vocabulary = sorted(theirs.get_vocab(), key=theirs.token_to_id)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    if kind == "bert-cased":
        (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    loaded = read_tokenizer(tmp_path, config_of(theirs, kind))
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert loaded.tokenizer.tokenize(TEXTS).to_list() == expected
    names = ("unk", "pad", "cls", "sep", "mask")
    ids = {name: theirs.token_to_id(f"[{name.upper()}]") for name in names}
    assert loaded.token_ids == ids
    assert loaded.first_token_ids == (ids["cls"],)


PLAIN = [text for text in TEXTS if not {*"<[\x00"} & {*text}]


def test_a_sentence_piece_model_of_llama(tmp_path):
    proto = piece_model("bpe", **LLAMA2)
    (tmp_path / "tokenizer.model").write_bytes(proto)
    config = {"model_type": "llama", "vocab_size": 900, "eos_token_id": 2}
    loaded = read_tokenizer(tmp_path, config)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    assert loaded.tokenizer.tokenize(PLAIN).to_list() == processor.encode(PLAIN)
    assert loaded.first_token_ids == (1,)
    assert loaded.token_ids == {"bos": 1, "eos": 2, "unk": 0}


@pytest.mark.parametrize("kind", ["t5", "xlm-roberta"])
def test_a_sentence_piece_model_of_unigrams(kind, tmp_path):
    options = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    options = options if kind == "t5" else {}
    proto = piece_model("unigram", vocab_size=400, **options)
    name = "spiece.model" if kind == "t5" else "sentencepiece.bpe.model"
    (tmp_path / name).write_bytes(proto)
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 3}')
    size = len(parsed(proto).pieces)
    ends = {"t5": 1, "xlm-roberta": 2}
    config = {"model_type": kind, "vocab_size": size + 3, "eos_token_id": ends[kind]}
    loaded = read_tokenizer(tmp_path, config)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    texts = ["the cats saw the mat", " don't  see\t1 ½ ①", "猫は 日本語", "é ü"]
    expected = processor.encode(texts)
    if kind == "xlm-roberta":
        unknown = processor.unk_id()
        expected = [[3 if id == unknown else id + 1 for id in row] for row in expected]
        assert loaded.token_ids["mask"] == size + 1
    else:
        assert loaded.tokenizer.token_to_id("<extra_id_0>") == size + 2
        assert loaded.tokenizer.token_to_id("<extra_id_2>") == size
    assert loaded.tokenizer.tokenize(texts).to_list() == expected


def test_the_files_of_m2m(tmp_path):
    proto = piece_model("bpe", vocab_size=500)
    model = parsed(proto)
    pieces = [piece.piece for piece in model.pieces if piece.type == 1]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    (tmp_path / "sentencepiece.bpe.model").write_bytes(proto)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    config = {"model_type": "m2m_100", "vocab_size": len(tokens) + 108}
    config |= {"is_encoder_decoder": True, "decoder_start_token_id": 2}
    loaded = read_tokenizer(tmp_path, {**config, "eos_token_id": 2})
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    texts = ["the cats saw the mat", " don't  see\t1 ½ ①", "猫は 日本語", "é ü"]
    rows = processor.encode(texts, out_type=str)
    expected = [[vocabulary.get(piece, 3) for piece in row] for row in rows]
    assert loaded.tokenizer.tokenize(texts).to_list() == expected
    assert loaded.language_token_ids["en"] == len(tokens) + 18
    assert loaded.first_token_ids == (len(tokens) + 18,)
    assert loaded.tokenizer.start_token_id == 2
    del vocabulary[pieces[0]]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(ValueError, match="bpe.model must be .* vocab.json must have"):
        read_tokenizer(tmp_path, config)


OPTIONS = {
    "identity": {"normalization": "identity"},
    "bytes": {"normalization": "identity", "byte_fallback": True},
    "symbols": {"normalization": "identity", "user_defined_symbols": ["<name>"]},
    "running": {"normalization": "identity", "keep_whitespace": True},
    "nmt": {},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_trained_tokenizer_goes_out(name, tmp_path):
    tokenizer = SentencePieceTokenizer.train(
        lines=TRAINING, vocabulary_size=850, **OPTIONS[name]
    )
    write_tokenizer(tokenizer, tmp_path)
    texts = [*TEXTS, "a<name>b", "<name> c", "x <name>"]
    if name == "nmt":
        texts = [
            *TRAINING[:7],
            "ｅ① ½",
            "a\u0301 e\u0323",
            "A\u00adB\u200b c",
            "  a  b ",
        ]
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert plain_ids(again, texts) == tokenizer.tokenize(texts).to_list()
    assert (again.pad_token_id, again.eos_token_id) == (0, 3)
    config = {"model_type": "bart", "vocab_size": 850, "eos_token_id": 3}
    loaded = read_tokenizer(tmp_path, config).tokenizer
    assert loaded.in_graph
    assert loaded.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()


def test_tokenizers_of_keras_hub_go_out(tmp_path):
    theirs = KINDS["gpt2"]()
    content = json.loads(theirs.to_str())["model"]
    merges = [" ".join(pair) for pair in content["merges"]]
    ids = content["vocab"]
    tokenizer = KerasHubTokenizer.from_byte_pairs("GPT2Tokenizer", ids, merges)
    write_tokenizer(tokenizer, tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert plain_ids(again) == plain_ids(
        PreTrainedTokenizerFast(tokenizer_object=theirs)
    )
    assert again.eos_token == "<|endoftext|>"
    proto = piece_model("bpe", **LLAMA2)
    own = keras_nlp.tokenizers.SentencePieceTokenizer(proto)
    tokenizer = KerasHubTokenizer(own, start_token_id=1, end_token_id=2)
    write_tokenizer(tokenizer, tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert plain_ids(again, PLAIN) == tokenizer.tokenize(PLAIN).to_list()


def test_tokenizers_that_do_not_go_out(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]
    bert = keras_nlp.tokenizers.BertTokenizer(words)
    for tokenizer in (WordTokenizer.train(lines=TRAINING), KerasHubTokenizer(bert)):
        with pytest.raises(ValueError, match="`tokenizer` must be a HuggingFaceT"):
            write_tokenizer(tokenizer, tmp_path)


def test_framing_of_settings(tmp_path):
    theirs = KINDS["llama3"]()
    config = folder_of(theirs, "llama3", tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    for value, expected in ((False, ()), (True, (0,))):
        path.write_text(json.dumps({**settings, "add_bos_token": value}))
        assert read_tokenizer(tmp_path, config).first_token_ids == expected
    loaded = read_tokenizer(tmp_path, config)
    write_tokenizer(loaded.tokenizer, tmp_path, loaded.token_ids, [1], [0])
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("a")["input_ids"] == [
        1,
        *again("a", add_special_tokens=False)[0].ids,
        0,
    ]


def test_a_folder_without_a_tokenizer(tmp_path):
    assert read_tokenizer(tmp_path, {"model_type": "gpt2", "vocab_size": 9}) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json must be a tokenizer of the package"),
        ("tokenizer.json", "\xff", "tokenizer.json must be a tokenizer of the package"),
        ("tokenizer_config.json", '{"auto_map": {"A": "b.C"}}', "not have `auto_map`"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json"),
        ("added_tokens.json", '{"<new>": 9}', "'<new>' has the id 9"),
        ("added_tokens.json", '{"<new>": "a"}', "a file with added tokens"),
    ],
)
def test_damaged_files(name, content, message, tmp_path):
    config = folder_of(KINDS["bert"](), "bert", tmp_path)
    (tmp_path / name).write_text(content, "latin-1")
    with pytest.raises(ValueError, match=message):
        read_tokenizer(tmp_path, config)


def test_files_that_contradict_the_config(tmp_path):
    config = folder_of(KINDS["bert"](), "bert", tmp_path)
    message = "must be below 250, `vocab_size` in config.json; it has the id 299"
    with pytest.raises(ValueError, match=message):
        read_tokenizer(tmp_path, {**config, "vocab_size": 250})
    byte_pair_files(KINDS["gpt2"](), tmp_path / "2")
    with pytest.raises(
        ValueError, match="tokenizer.json for a model of the type 'opt'"
    ):
        read_tokenizer(tmp_path / "2", {"model_type": "opt", "vocab_size": 400})
    (tmp_path / "2" / "merges.txt").write_text("a b c\n")
    with pytest.raises(ValueError, match="merges.txt must be pairs of tokens"):
        read_tokenizer(tmp_path / "2", {"model_type": "gpt2", "vocab_size": 400})


def test_all_pairs_of_pieces_are_merges():
    """The reference of the tests of Llama 2, which merges by scores."""
    model = parsed(piece_model("bpe", **LLAMA2))
    assert len(merges_of(model)) > 100

"""Tagged words: CoNLL and JSONL files, schemes and spans of tags, and the errors."""

import gzip

import pytest

from keras_transformer_runtime.labels.tagged_words import (
    read_tagged_words,
    tag_scheme,
    tag_spans,
)

pytestmark = pytest.mark.once("torch")

# As in the files of the CoNLL-2003 shared task.
CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
# NN I-NP I-MISC
\t
Peter NNP I-NP I-PER


-DOCSTART- -X- -X- O
10\u00a0000 CD I-NP O"""
WORDS = (("EU", "rejects", "#"), ("Peter",), ("10\u00a0000",))
ENTITIES = (("I-ORG", "O", "I-MISC"), ("I-PER",), ("O",))
PARTS = (("NNP", "VBZ", "NN"), ("NNP",), ("CD",))


def read(folder, name, text, *arguments, **options):
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return read_tagged_words(path, *arguments, **options)


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.conll.gz"])
def test_conll(tmp_path, name, end):
    text = CONLL.replace("\n", "\r\n") if end == "\r\n" else CONLL
    found = read(tmp_path, name, text + end)
    assert (found.words, found.tags) == (WORDS, ENTITIES)
    assert found.lines == (3, 7, 11)
    assert found.tag_names == ("I-MISC", "I-ORG", "I-PER", "O")
    assert found.scheme == "IOB1"
    part = found.subset([2, 0])
    assert (part.words, part.lines) == ((WORDS[2], WORDS[0]), (11, 3))
    assert (part.tag_names, len(part)) == (found.tag_names, 2)


def test_columns_of_conll(tmp_path):
    found = read(tmp_path, "a.conll", CONLL, ["1", "2"])
    assert (found.tags, found.scheme) == (PARTS, None)
    names = ("O", "I-PER", "I-LOC", "I-ORG", "I-MISC")
    found = read(tmp_path, "a.conll", CONLL, ["-4", "-1"], names)
    assert (found.words, found.tags) == (WORDS, ENTITIES)
    assert found.tag_names == names
    swapped = read(tmp_path, "a.tsv", "B-LOC\tNew York\nO\tis big\n", ["2", "1"])
    assert swapped.words == (("New York", "is big"),)


def test_conllu(tmp_path):
    rows = ["# text = vamonos #", "1-2 vamonos _", "1 vamos VERB", "2 nos PRON",
            "2.1 x X", "3 # SYM", "", "# text = a", "1 a DET"]  # fmt: skip
    lines = [
        row if row[:1] in ("#", "") else "{0}\t{1}\t{1}\t{2}\t_".format(*row.split())
        for row in rows
    ]
    found = read(tmp_path, "a.conllu", "\n".join(lines))
    assert found.words == (("vamos", "nos", "#"), ("a",))
    assert found.tags == (("VERB", "PRON", "SYM"), ("DET",))
    assert found.lines == (3, 9)
    assert read(tmp_path, "b.conllu.gz", "\n".join(lines), ["3", "4"]).words[1] == (
        "a",
    )


def test_jsonl(tmp_path):
    text = '{"words": ["in", "Rome"], "tags": ["O", "B-LOC"]}\n{"words":[],"tags":[]}\n'
    found = read(tmp_path, "a.jsonl", text)
    assert (found.words, found.tags) == ((("in", "Rome"),), (("O", "B-LOC"),))
    assert (found.lines, found.scheme) == ((1,), "IOB2")
    text = text.replace('"words"', '"x"').replace('"tags"', '"y"')
    assert read(tmp_path, "a.jsonl.gz", text, ["x", "y"]).words == found.words


@pytest.mark.parametrize(
    "name, text, options, message",
    [
        ("a.conll", "a O\n\nb\n", {}, "the 2 columns of .* line 3 of .*a.conll` has 1"),
        ("a.conll", "a x O\nb c x O\n", {}, "the 3 columns of .* line 2 of .* has 4"),
        ("a.conll", "a\nb\n", {}, "the same column 1, and line 1 of .* columns: 1"),
        ("a.conll", "\n \n", {}, "must have words; .*a.conll` has none"),
        (
            "a.conll",
            "a O\n",
            {"columns": ["1", "3"]},
            r"received `columns=\['1', '3'\]`",
        ),
        ("a.conll", "a O\n", {"columns": ["-3", "1"]}, r"=\['-3', '1'\]`, and line 1"),
        ("a.conll", "a O\n", {"columns": ["0", "1"]}, r"=\['0', '1'\]`"),
        ("a.conll", "a O\n", {"columns": ["words", "tags"]}, "their numbers from 1 on"),
        (
            "a.conll",
            "a O\n",
            {"columns": ["1"]},
            r"that of the tags; .*=\['1'\]`. Pass",
        ),
        (
            *("a.conll", "a O\n\nb O\nc X\n", {"tag_names": ["Y", "O"]}),
            "training data too; 'X' in line 4 of .*a.conll` is not one of 'Y', 'O'",
        ),
        (
            "a.jsonl",
            '{"words": ["a"]}',
            {},
            "'tags' must .* line 1 .* missing, .* words",
        ),
        ("a.jsonl", '{"words": ["a"], "tags": [1]}', {}, r"line 1 of .*, it is \[1\]"),
        ("a.jsonl", '{"words": [" "], "tags": ["O"]}', {}, "'words' must be a list"),
        (
            "a.jsonl",
            '{"words": "a", "tags": "O"}',
            {},
            "'words' must be a list of texts",
        ),
        (
            "a.jsonl",
            '\n{"words": ["a"], "tags": []}',
            {},
            "line 2 .* 1 words and 0 tags",
        ),
        ("a.jsonl", '{"words": ["\\ud800"], "tags": ["O"]}', {}, "U\\+D800 .* line 1"),
        ("a.jsonl", "[]", {}, "such as .*Rome.*; line 1 of .* has \\[\\]"),
    ],
)
def test_errors(tmp_path, name, text, options, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, name, text, **options)


@pytest.mark.parametrize(
    "tags, scheme",
    [
        ("O B-X I-X B-X", "IOB2"),
        ("I-X I-X B-X O I-Y", "IOB1"),
        ("I-X B-Y", "IOB2"),  # in IOB1, B-Y would be I-Y
        ("I-X O B-X", "IOB2"),
        ("B-X E-X S-X O", "BIOES"),
        ("B-X L-X U-X O", "BILOU"),
        ("B I I B", "IOB2"),
        ("B-X L-X S-X", None),
        ("DET NOUN I", None),
        ("O O", None),
        ("B-X NN", None),
        ("B- O", None),
    ],
)
def test_schemes(tags, scheme):
    assert tag_scheme([["O"], tags.split()]) == scheme


@pytest.mark.parametrize(
    "tags, spans",
    [
        ("", []),
        ("O O", []),
        ("B-X I-X O B-Y", [("X", 0, 2), ("Y", 3, 4)]),
        ("B-X B-X I-X", [("X", 0, 1), ("X", 1, 3)]),
        ("I-X I-X B-X I-Y", [("X", 0, 2), ("X", 2, 3), ("Y", 3, 4)]),
        ("S-X B-X I-X E-X I-X", [("X", 0, 1), ("X", 1, 4), ("X", 4, 5)]),
        ("E-X E-X S-X S-X", [("X", 0, 1), ("X", 1, 2), ("X", 2, 3), ("X", 3, 4)]),
        ("B-X L-X L-X U-X", [("X", 0, 2), ("X", 2, 3), ("X", 3, 4)]),
        ("B-A-B I-A-B I-A", [("A-B", 0, 2), ("A", 2, 3)]),
        # Tests of https://github.com/chakki-works/seqeval, whose ends are last words.
        ("O O O B-MISC I-MISC I-MISC O B-PER I-PER", [("MISC", 3, 6), ("PER", 7, 9)]),
        ("O O O B I I O B I O", [("_", 3, 6), ("_", 7, 9)]),
    ],
)
def test_spans(tags, spans):
    assert tag_spans(tags.split()) == spans


def test_plain_tags_have_no_spans():
    with pytest.raises(ValueError, match="begin with B, I.* received 'NN'. Plain tags"):
        tag_spans(["O", "NN"])

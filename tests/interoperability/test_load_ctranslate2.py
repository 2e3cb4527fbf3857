"""Loaded models compute the logits of CTranslate2."""

import json
import shutil
import struct
import subprocess
import sys
import warnings

import ctranslate2
import marian_folders
import numpy as np
import pytest
from ctranslate2.converters import TransformersConverter
from ctranslate2.specs import transformer_spec
from ctranslate2_designs import DESIGNS, TARGET, log_probabilities, model_of
from layer_contract import to_numpy

from keras_transformer import GreedySearch
from keras_transformer.export import ctranslate2 as exporting
from keras_transformer.interoperability import load_ctranslate2
from keras_transformer.interoperability.ctranslate2_architecture import (
    seq2seq_arguments,
)
from keras_transformer.interoperability.ctranslate2_file import read_variables
from keras_transformer.layers import LearnedPositionalEncoding, PositionalEncoding
from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer

pytestmark = pytest.mark.once("torch")

INPUTS = {
    "encoder_token_ids": np.array([[4, 5, 6, 3, 0], [7, 8, 4, 6, 3]]),
    "decoder_token_ids": np.array([[2, 4, 6], [2, 5, 7]]),
}


def export(model, folder, quantization=None):
    """Writes a folder without the checks of `export_ctranslate2`."""
    exporting._write(model, folder, quantization)


def tokenizers_of(model):
    return model.source_tokenizer, model.target_tokenizer


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "model"
    export(model_of(), folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


# Folders of this library.


@pytest.mark.parametrize("name", DESIGNS)
def test_an_export_is_loaded(name, tmp_path):
    model = model_of(**DESIGNS[name]())
    export(model, tmp_path / "1")
    again = load_ctranslate2(tmp_path / "1", *tokenizers_of(model))
    np.testing.assert_array_equal(to_numpy(again(INPUTS)), to_numpy(model(INPUTS)))
    for name in ("tie_embeddings", "activation", "start_token_id"):
        assert getattr(again, name) == getattr(model, name)
    if again.positions.added_to_inputs:
        longest = model.max_source_length or 2048
        assert again.max_source_length == longest


@pytest.mark.parametrize(
    "quantization, tolerance", [("int8", 0.01), ("int16", 0.002), ("bfloat16", 8e-3)]
)
def test_weights_in_fewer_bits(quantization, tolerance, tmp_path):
    model = model_of(source_vocabulary_size=13, target_vocabulary_size=17)
    export(model, tmp_path / "1", quantization=quantization)
    again = load_ctranslate2(tmp_path / "1")
    for weight, other in zip(model.weights, again.weights, strict=True):
        largest = np.max(np.abs(to_numpy(weight)))
        np.testing.assert_allclose(
            to_numpy(other), to_numpy(weight), atol=tolerance * largest
        )


def test_sentence_pieces_are_loaded(tmp_path):
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=29)
    model = model_of(source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    export(model, tmp_path / "1")
    again = load_ctranslate2(tmp_path / "1")
    assert again.source_tokenizer.proto == tokenizer.proto
    assert again.source_tokenizer is again.target_tokenizer
    texts = ["the mat", "a ☃ sat", ""]
    expected = model.generate(texts, max_length=5)
    assert again.generate(texts, max_length=5) == expected


WITHOUT_CTRANSLATE2 = """
import sys

sys.modules["ctranslate2"] = None
from keras_transformer import load_ctranslate2

print(load_ctranslate2(sys.argv[1]).hidden_dim)
"""


@pytest.mark.slow
def test_the_package_ctranslate2_is_not_needed(good):
    command = [sys.executable, "-c", WITHOUT_CTRANSLATE2, str(good)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stdout.split()[-1:] == ["12"], process.stderr


# Folders of other converters.


def vocabulary_of(path):
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else text.splitlines()


def check_scores(folder, model, sources, targets):
    """Compares the log-probabilities of targets; rows end with the end token."""
    translator = ctranslate2.Translator(
        str(folder), intra_threads=1, compute_type="float32"
    )
    names = {
        side: vocabulary_of(path)
        for side in ("source", "target")
        for path in folder.glob("*_vocabulary.*")
        if path.name.startswith((side, "shared"))
    }
    rows = [
        [[names[side][i] for i in row[:-1]] for row in ids]
        for side, ids in (("source", sources), ("target", targets))
    ]
    config = folder / "config.json"
    adds_end = config.exists() and json.loads(config.read_text())["add_source_eos"]
    ends = [[] if adds_end else ["</s>"]] * len(sources)
    rows[0] = [row + end for row, end in zip(rows[0], ends, strict=True)]
    results = translator.score_batch(*rows)
    scores = [sum(result.log_probs) for result in results]
    tables = log_probabilities(model, sources, targets)
    expected = [
        sum(table[range(len(row)), row])
        for table, row in zip(tables, targets, strict=True)
    ]
    np.testing.assert_allclose(expected, scores, atol=1e-4)


def test_a_conversion_from_marian(tmp_path):
    theirs = tmp_path / "theirs"
    marian_folders.random_model(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converter = TransformersConverter(str(theirs))
        converter.convert(str(tmp_path / "1"), quantization="int8")
    for side in ("source", "target"):
        shutil.copy(theirs / f"{side}.spm", tmp_path / "1")
    model = load_ctranslate2(tmp_path / "1")
    assert isinstance(model.positions, PositionalEncoding)
    assert not model.positions.interleaved
    assert isinstance(model.source_tokenizer, MarianTokenizer)
    assert model.start_token_id == model.pad_token_id == 35
    sources = model.source_tokenizer.tokenize(marian_folders.SOURCES, add_end=True)
    targets = model.target_tokenizer.tokenize(marian_folders.TARGETS, add_end=True)
    check_scores(tmp_path / "1", model, sources.to_list(), targets.to_list())
    texts = model.generate(marian_folders.SOURCES)
    assert len(texts) == 4 and not any("pad" in text for text in texts)


def random_spec(layers=(2, 1), source=11, target=13, width=12, heads=3, **options):
    """Builds a model of CTranslate2 with random weights."""
    rng = np.random.default_rng(7)
    spec = transformer_spec.TransformerSpec.from_config(layers, heads, **options)
    glu = options.get("ffn_glu")

    def linear(part, rows, columns):
        part.weight = rng.normal(0, 0.4, (rows, columns)).astype("float32")
        part.bias = rng.normal(0, 0.4, rows).astype("float32")

    def norm(part):
        part.gamma = rng.normal(1, 0.4, width).astype("float32")
        if hasattr(part, "beta"):
            part.beta = rng.normal(0, 0.4, width).astype("float32")

    def rows(size):
        return rng.normal(0, 0.4, (size, width)).astype("float32")

    spec.encoder.embeddings[0].weight = rows(source)
    spec.decoder.embeddings.weight = rows(target)
    linear(spec.decoder.projection, target, width)
    for stack in (spec.encoder, spec.decoder):
        for layer in stack.layer:
            linear(layer.self_attention.linear[0], 3 * width, width)
            linear(layer.self_attention.linear[1], width, width)
            norm(layer.self_attention.layer_norm)
            if stack is spec.decoder:
                for i, size in enumerate((width, 2 * width, width)):
                    linear(layer.attention.linear[i], size, width)
                norm(layer.attention.layer_norm)
            linear(layer.ffn.linear_0, 7, width)
            if glu:
                linear(layer.ffn.linear_0_noact, 7, width)
            linear(layer.ffn.linear_1, width, 7)
            norm(layer.ffn.layer_norm)
        if hasattr(stack, "layer_norm"):
            norm(stack.layer_norm)
    special = ["<blank>", "<unk>", "<s>", "</s>"]
    spec.register_source_vocabulary([*special, *map(str, range(source - 4))])
    spec.register_target_vocabulary([*special, *map(str, range(target - 4))])
    spec.config.add_source_eos = True
    return spec


def write(spec, folder):
    folder.mkdir()
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return folder


SOURCES, TARGETS = [[4, 9, 7, 6, 3], [10, 3]], [[5, 12, 3], [8, 8, 4, 3]]


@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_model_without_a_table_of_positions(pre_norm, tmp_path):
    spec = random_spec(pre_norm=pre_norm, ffn_glu=pre_norm)
    folder = write(spec, tmp_path / "1")
    model = load_ctranslate2(folder)
    assert isinstance(model.positions, LearnedPositionalEncoding)
    assert model.max_source_length == model.max_target_length == 500
    check_scores(folder, model, SOURCES, TARGETS)


@pytest.mark.parametrize("scale", [1.0, 12**0.5])
def test_scaled_and_unscaled_embeddings(scale, tmp_path):
    spec = random_spec()
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = scale
    folder = write(spec, tmp_path / "1")
    model = load_ctranslate2(folder)
    assert model.scale_embeddings == (scale > 1)
    check_scores(folder, model, SOURCES, TARGETS)


def test_the_default_epsilon(tmp_path):
    spec = random_spec(pre_norm=True, rms_norm=True)
    for embeddings in (spec.encoder.embeddings[0], spec.decoder.embeddings):
        embeddings.weight = embeddings.weight / 1000  # so that epsilon matters
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = np.zeros((9, 12), "float32")
    folder = write(spec, tmp_path / "1")
    assert (
        json.loads((folder / "config.json").read_text())["layer_norm_epsilon"] is None
    )
    model = load_ctranslate2(folder)
    assert model.layer_norm_epsilon == 1e-6
    check_scores(folder, model, SOURCES, TARGETS)


def test_a_missing_pad_token_is_added(tmp_path):
    spec = random_spec()
    for side in ("source", "target"):
        spec._vocabularies[side][0][0] = f"<{side}>"
    spec.decoder.start_from_zero_embedding = True
    folder = write(spec, tmp_path / "1")
    model = load_ctranslate2(folder)
    assert model.pad_token_id == model.start_token_id == 13
    assert model.source_vocabulary_size == model.target_vocabulary_size == 14
    check_scores(folder, model, SOURCES, TARGETS)
    ids = model.generate(SOURCES, GreedySearch(), max_length=5)
    assert np.all(ids.token_ids[0, 0, : ids.lengths[0, 0]] != 13)


# Older versions of the format, which CTranslate2 reads.

OF_THE_MODEL = (
    "num_heads",
    "pre_norm",
    "activation",
    "embeddings_merge",
    "alignment_layer",
    "alignment_heads",
)
NUMBERS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3}


def write_older(spec, folder, version, revision, name, settings=(), drop=()):
    """Writes settings of both sides once, and no config.json."""
    folder.mkdir()
    arrays, aliases = {}, {}
    for path, value in spec.variables(ordered=True):
        path = path.replace("embeddings_0", "embeddings")
        if isinstance(value, str):
            aliases[path] = value.replace("embeddings_0", "embeddings")
            continue
        setting = path.partition("/")[2]
        if setting in OF_THE_MODEL and revision < 5:
            path = setting
        if not path.endswith(tuple(drop)):
            arrays[path] = (value.dtype, value.shape, value.to_bytes())
    if version < 3:
        arrays |= {
            alias + end: arrays[path + end]
            for alias, path in aliases.items()
            for end in ("", "_scale")
            if path + end in arrays
        }
    for path, value in dict(settings).items():
        value = np.array(value, "int8")
        arrays[path] = ("int8", value.shape, value.tobytes())
    content = struct.pack("I", version) + text(name)
    content += struct.pack("II", revision, len(arrays))
    for path, (dtype, shape, data) in arrays.items():
        content += text(path.encode()) + struct.pack("B", len(shape))
        content += struct.pack(f"{len(shape)}I", *shape)
        width = np.dtype(dtype).itemsize
        kind = (
            (NUMBERS[dtype], len(data)) if version > 3 else (width, len(data) // width)
        )
        content += struct.pack("<BI", *kind) + data
    if version > 2:
        content += struct.pack("I", len(aliases))
        for pair in aliases.items():
            content += b"".join(text(path.encode()) for path in pair)
    (folder / "model.bin").write_bytes(content)
    for side in ("source", "target"):
        lines = "\n".join(spec._vocabularies[side][0])
        (folder / f"{side}_vocabulary.txt").write_text(f"{lines}\n")
    return folder


OLDER = {
    "base": (2, 2, b"TransformerBase", 8),
    "big": (2, 2, b"TransformerBig", 16),
    "heads are stored": (3, 3, b"TransformerSpec", 2),
    "types are stored": (4, 4, b"TransformerSpec", 2),
    "settings of sides": (5, 5, b"TransformerSpec", 2),
}


@pytest.mark.parametrize(
    "kind, quantization",
    [*zip(OLDER, [None, "int8", "int16", "int8", None], strict=True)],
)
def test_an_older_format(kind, quantization, tmp_path):
    version, revision, name, heads = OLDER[kind]
    spec = random_spec(heads=heads, width=16, pre_norm=True)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.validate()
    spec.optimize(quantization)
    drop = ["num_heads"] * (revision < 3)
    drop += ["weight_scale"] * (quantization == "int16")  # It is constant.
    folder = write_older(spec, tmp_path / "1", version, revision, name, drop=drop)
    model = load_ctranslate2(folder)
    assert (model.num_heads, model.hidden_dim) == (heads, 16)
    assert (model.pad_token_id, model.start_token_id, model.end_token_id) == (0, 2, 3)
    check_scores(folder, model, SOURCES, TARGETS)


def test_settings_of_an_older_format(tmp_path):
    spec = random_spec()
    spec.validate()
    spec.optimize()

    def written(folder, **settings):
        folder = tmp_path / folder
        write_older(spec, folder, 5, 5, b"TransformerSpec", settings)
        return folder

    model = load_ctranslate2(written("start", with_target_bos=0, with_source_eos=0))
    assert model.start_token_id == model.end_token_id == 3
    check_scores(tmp_path / "start", model, SOURCES, TARGETS)
    model = load_ctranslate2(written("named", bos_token=list(b"5"), unk_token=[65]))
    assert model.start_token_id == 9
    with pytest.raises(ValueError, match="`add_source_bos` .* must be false"):
        load_ctranslate2(written("source", with_source_bos=1))
    with pytest.raises(ValueError, match="`decoder_start_token` in .*=None"):
        load_ctranslate2(written("by user", user_decoder_start_tokens=1))
    load_ctranslate2(written("not relative", with_relative_position=0))
    with pytest.raises(ValueError, match="a model without 'with_relative_position'"):
        load_ctranslate2(written("relative", with_relative_position=1))


def test_vocabularies_in_text_files(folder):
    for path in folder.glob("*_vocabulary.json"):
        tokens = json.loads(path.read_text())
        tokens[4:8] = ["\u2028", "\x85", "\r", "\x0c"]  # They end no line.
        file = path.with_suffix(".txt")
        file.write_bytes("\n".join([*tokens, ""]).encode())
        path.unlink()
    assert load_ctranslate2(folder).source_vocabulary_size == 10
    file.write_bytes(b"<pad>\n\xff\n")
    with pytest.raises(ValueError, match=f"{file.name} must be UTF-8"):
        load_ctranslate2(folder)


def test_pieces_that_do_not_match_the_vocabulary(tmp_path):
    folder = write(random_spec(), tmp_path / "1")
    for side in ("source", "target"):
        proto = marian_folders.pieces(marian_folders.SOURCES, 31)
        (folder / f"{side}.model").write_bytes(proto)
    model = load_ctranslate2(folder)
    assert model.source_tokenizer is model.target_tokenizer is None


# Errors.


def test_unsupported_parts(tmp_path):
    spec = random_spec(with_relative_position=True)
    rng = np.random.default_rng(3)
    for stack in (spec.encoder, spec.decoder):
        for layer in stack.layer:
            table = rng.normal(size=(9, 4)).astype("float32")
            layer.self_attention.relative_position_keys = table
            layer.self_attention.relative_position_values = table
    folder = write(spec, tmp_path / "1")
    with pytest.raises(ValueError, match="a model without '.*relative_position.*'"):
        load_ctranslate2(folder)
    folder = write(random_spec(activation=4), tmp_path / "2")
    message = "`activation` in model.bin must be one of .*=4"
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(folder)


def set_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"add_source_bos": True}, "`add_source_bos` in config.json must be false"),
        ({"eos_token": "<end>"}, "`eos_token` .* a token of the target vocabulary"),
        ({"decoder_start_token": None}, "`decoder_start_token` in .*=None"),
        ({"layer_norm_epsilon": 0.0}, "`layer_norm_epsilon in .* finite .* above 0"),
        ({"layer_norm_epsilon": "1e-5"}, "`layer_norm_epsilon in .* finite .* above 0"),
    ],
)
def test_settings(folder, setting, message):
    set_config(folder, **setting)
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(folder)


def test_tokenizers_with_other_special_tokens(good):
    other = marian_folders
    proto = other.pieces(other.SOURCES, 31)
    tokenizer = MarianTokenizer(proto, ["</s>", "<unk>", "a", "<pad>"])
    message = "`source_tokenizer` and `target_tokenizer` must have the special tokens"
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(good, tokenizer)
    message = "`source_tokenizer` must be given with `target_tokenizer`"
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(good, target_tokenizer=TARGET)


@pytest.mark.parametrize("side, rows, more", [("source", 10, -1), ("target", 11, 2)])
def test_a_vocabulary_of_another_length(side, rows, more, folder):
    path = folder / f"{side}_vocabulary.json"
    tokens = [*json.loads(path.read_text()), "x", "y"]
    path.write_text(json.dumps(tokens[: rows + more]))
    message = f"{path.name} .* each of the {rows} rows .* it has {rows + more} tokens"
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(folder)


@pytest.mark.parametrize("token", [{"a": 1}, 7, None])
def test_a_token_that_is_no_text(folder, token):
    path = folder / "source_vocabulary.json"
    path.write_text(json.dumps([*json.loads(path.read_text())[:-1], token]))
    with pytest.raises(ValueError, match=f"{path} must be a list of tokens"):
        load_ctranslate2(folder)


def test_damaged_pieces(folder):
    for side in ("source", "target"):
        (folder / f"{side}.model").write_bytes(b"\xff" * 99)
    with pytest.raises(ValueError, match="source.model must be a SentencePiece model"):
        load_ctranslate2(folder)


@pytest.mark.parametrize("name", ["config.json", "model.bin", "source_vocabulary.json"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match="`folder` must h"):
        load_ctranslate2(folder)


def test_a_file_that_ends_too_early(folder):
    path = folder / "model.bin"
    content = path.read_bytes()
    for size in (0, 3, 4, 5, 20, 40, 1000, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="damaged .it ends too early"):
            load_ctranslate2(folder)


def text(string):
    return struct.pack("<H", len(string) + 1) + string + b"\0"


HEAD = struct.pack("I", 6) + text(b"TransformerSpec") + struct.pack("II", 7, 1)
ONE = HEAD + text(b"x") + struct.pack("B", 1)
DAMAGED = {
    "older": (struct.pack("I", 1), "version 2 to 6 .* is of version 1"),
    "newer": (struct.pack("I", 7), "version 2 to 6 .* is of version 7"),
    "name": (struct.pack("I", 6) + text(b"\xff"), "a name is not UTF-8"),
    "size": (ONE + struct.pack("<IBI", 2**31, 0, 4), "shape .2147483648,. has 4 bytes"),
    "empty": (ONE + struct.pack("<IBI", 0, 0, 0), "'x' of shape .0,. has no elements"),
    "type": (ONE + struct.pack("<IBI", 1, 9, 4), "'x' has the unknown type 9"),
    "rank": (HEAD + text(b"x") + struct.pack("B", 200), "'x' has 200 axes"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name, folder):
    content, message = DAMAGED[name]
    (folder / "model.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_ctranslate2(folder)


SHAPES = {
    "encoder/embeddings_0/weight": (120,),
    "decoder/embeddings/weight": (11, 5),
    "decoder/projection/bias": (5,),
    "encoder/position_encodings/encodings": (2**40,),
    "decoder/position_encodings/encodings": (2**40, 5),
    "encoder/layer_0/self_attention/linear_0/weight": (36, 5),
    "decoder/layer_0/self_attention/linear_0/weight": (5, 12),
    "decoder/layer_0/attention/linear_0/weight": (2**40, 12),
    "encoder/layer_0/ffn/linear_0/weight": (2**40, 1),
    "decoder/layer_0/ffn/linear_0/weight": (7, 5),
    "decoder/layer_0/ffn/linear_1/weight": (2**40, 7),
}


def check_shape(folder, name, shape):
    variables = read_variables(folder / "model.bin")
    array = np.broadcast_to(np.float32(0), shape)  # without memory
    variables._arrays[variables.stored_name(name)] = array
    with pytest.raises(ValueError, match=f"{name}.* must .* has shape .{shape[0]}"):
        seq2seq_arguments(variables, None)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_checked_before_a_model_is_built(name, good):
    check_shape(good, name, SHAPES[name])


def test_a_relative_bias_has_a_column_for_each_head(tmp_path):
    export(model_of(**DESIGNS["t5"]()), tmp_path / "1")
    name = "encoder/layer_0/self_attention/relative_attention_bias"
    check_shape(tmp_path / "1", name, (12, 5))


def test_another_kind_of_model(folder):
    content = HEAD.replace(b"TransformerSpec", b"Wav2Vec2BertSpe")
    content += text(b"x") + struct.pack("<BIBIfI", 1, 1, 0, 4, 0.5, 0)
    (folder / "model.bin").write_bytes(content)
    assert read_variables(folder / "model.bin").name == "Wav2Vec2BertSpe"
    with pytest.raises(
        ValueError, match="a 'TransformerSpec', or .*; received a 'Wav2Vec2Bert"
    ):
        load_ctranslate2(folder)

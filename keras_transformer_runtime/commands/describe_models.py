"""Descriptions of files and folders of models, for the command `inspect`."""

import datetime
import itertools
import json
import pathlib
import shlex
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from keras_transformer_runtime.files import (
    check_is_file,
    checked_file,
    read_file,
    read_json,
)
from keras_transformer_runtime.model_paths import find_model, is_version

if TYPE_CHECKING:
    from onnxruntime import NodeArg

    from keras_transformer.models import GenerativeModel, TextEncoder

# Values by name. Each entry of a list has its own line.
Facts: TypeAlias = Mapping[str, object]

SHOWN_TOKENS = 7


def command(name: str, *arguments: object) -> str:
    """Returns a call of `keras-transformer` as it is typed."""
    return f"keras-transformer {name} {shlex.join(map(str, arguments))}"


def size_and_date(path: pathlib.Path) -> Facts:
    """Returns the size of a file or folder, and the date of its newest file."""
    found = [each.stat() for each in (path, *path.rglob("*")) if each.is_file()]
    newest = max((each.st_mtime for each in found), default=0.0)
    date = datetime.datetime.fromtimestamp(newest).isoformat(" ", "minutes")
    size = sum(each.st_size for each in found)
    large = size >= 100_000
    text = f"{size / 1e6:,.1f} MB" if large else f"{size / 1e3:,.1f} kB"
    return {"size": text, "written": date}


def describe_keras_model(path: pathlib.Path) -> Facts:
    """Describes a `.keras` file, a preset, or a folder with `model.keras`."""
    found, facts = find_model(path), describe_trained_model(path)
    return {
        **size_and_date(found),
        **facts,
        "written": _stored_date(found),
        "next": next_commands(path, str(facts["class"])),
    }


def describe_trained_model(path: pathlib.Path) -> Facts:
    """Describes the model that `load_model` finds."""
    from keras_transformer.export import describe_model
    from keras_transformer.recipe.loading import load_model

    return describe_model(load_model(path))


def next_commands(path: pathlib.Path, class_name: str) -> list[str]:
    """Returns the commands that take a trained model of a class."""
    if class_name in ("TextClassifier", "TokenClassifier"):
        return [
            command("predict", path, "TEXTS"),
            command("evaluate", path, "DATA"),
            command("export", path, "FOLDER"),
        ]
    if class_name == "TextEncoder":
        return [
            command("embed", path, "TEXTS", "VECTORS.npy"),
            command("export", path, "FOLDER"),
        ]
    if class_name == "CausalLM":
        return [
            command("generate", path, "--prompt", "TEXT"),
            command("evaluate", path, "TEXT"),
            command("export", path, "FOLDER"),
        ]
    return [
        command("translate", path, "SOURCE", "TARGET"),
        command("evaluate", path, "SOURCE", "REFERENCES"),
        command("export", path, "FOLDER"),
    ]


def _stored_date(path: pathlib.Path) -> str:
    """Returns the date and the version of Keras in a `.keras` file or a preset."""
    if path.is_dir():
        metadata = read_json(path / "metadata.json")
    else:
        # `load_model` has checked the sizes of the members.
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read("metadata.json"))
    date = str(metadata.get("date_saved"))[:16].replace("@", " ").replace("T", " ")
    return f"{date} by Keras {metadata.get('keras_version')}"


def describe_saved_model(path: pathlib.Path) -> Facts:
    """Describes a SavedModel: the inputs and outputs of its signatures."""
    from keras_transformer.export import describe_signatures

    card = {"model card": path / "README.md"} if (path / "README.md").exists() else {}
    load = f'in Python: tensorflow.saved_model.load("{path}")'
    return {
        **size_and_date(path),
        **describe_signatures(path),
        **card,
        "next": [command("serve", path.parent) if is_version(path.name) else load],
    }


def describe_versions(path: pathlib.Path) -> Facts:
    """Describes a folder of versions of a SavedModel, and the newest of them."""
    numbers = [
        each.name for each in path.iterdir() if (each / "saved_model.pb").exists()
    ]
    versions = sorted(map(int, filter(is_version, numbers)))
    newest = describe_saved_model(path / str(versions[-1]))
    return {"versions": ", ".join(map(str, versions)), **newest}


def describe_ctranslate2(path: pathlib.Path) -> Facts:
    """Describes a folder of CTranslate2."""
    from keras_transformer.interoperability.ctranslate2 import load_ctranslate2
    from keras_transformer.interoperability.ctranslate2_file import (
        DECODER_ONLY,
        SIDES,
        read_variables,
    )

    variables = read_variables(path / "model.bin")
    types = ", ".join(variables.weight_types())
    facts = {
        **size_and_date(path),
        "format": f"version {variables.version}, weights in {types}",
    }
    try:
        loaded = _describe_loaded(load_ctranslate2(path))
    except ValueError as error:
        if variables.name not in SIDES:
            raise
        kind = "Generator" if variables.name == DECODER_ONLY else "Translator"
        return {
            **facts,
            "not loaded": str(error),
            "next": [f'in Python: ctranslate2.{kind}("{path}")'],
        }
    return {**facts, **loaded, "next": [command("import", path, "MODEL.keras")]}


def describe_pretrained(path: pathlib.Path) -> Facts:
    """Describes a model of transformers, or of Marian as OPUS publishes it."""
    from keras_transformer.interoperability import load_pretrained

    return {
        **size_and_date(path),
        **_describe_loaded(load_pretrained(path)),
        "next": [command("import", path, "MODEL.keras")],
    }


def _describe_loaded(model: "GenerativeModel | TextEncoder") -> Facts:
    from keras_transformer.export import describe_model

    facts = describe_model(model)
    return {"loaded as": facts.pop("class"), **facts}


def describe_onnx_folder(path: pathlib.Path) -> Facts:
    """Describes the graphs and settings that `export --format onnx` has written."""
    for graph in path.glob("*.onnx"):
        describe_onnx_graph(checked_file(graph, "path"))
    return {
        **size_and_date(path),
        **read_json(checked_file(path / "config.json", "path")),
        "next": [f"python examples/onnx_runtime.py {shlex.quote(str(path))} TEXT"],
    }


def describe_onnx_encoder(path: pathlib.Path) -> Facts:
    """Describes the graph and settings of a classifier or an encoder."""
    graph = describe_onnx_graph(path / "model.onnx")
    settings = read_json(checked_file(path / "config.json", "path"))
    return {**graph, **size_and_date(path), **settings, "next": graph["next"]}


def describe_onnx_graph(path: pathlib.Path) -> Facts:
    """Describes the inputs and outputs of an ONNX graph."""
    import onnxruntime

    check_is_file(path)
    try:
        session = onnxruntime.InferenceSession(path)
    except Exception as error:  # onnxruntime has an exception for each code
        raise ValueError(
            f"{path} must be an ONNX graph; it is damaged or another file: {error}"
        ) from error
    return {
        **size_and_date(path),
        "inputs": list(map(_describe_tensor, session.get_inputs())),
        "outputs": list(map(_describe_tensor, session.get_outputs())),
        "next": [f'in Python: onnxruntime.InferenceSession("{path}")'],
    }


def _describe_tensor(tensor: "NodeArg") -> str:
    dtype = tensor.type.removeprefix("tensor(").removesuffix(")")
    dtype = "float32" if dtype == "float" else dtype
    shape = (str(size) if isinstance(size, int) else "·" for size in tensor.shape)
    return f"{tensor.name} {dtype}({', '.join(shape)})"


def describe_weights(path: pathlib.Path) -> Facts:
    """Describes a file of `save_weights`."""
    from keras_transformer.models.file_checks import stored_sizes

    check_is_file(path)
    try:
        sizes = stored_sizes(path, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} must be a file of weights; it is damaged or another file: {error}"
        ) from error
    return {
        **size_and_date(path),
        "numbers": f"{sizes.numbers:,} in {sizes.arrays:,} arrays",
        "next": [f'in Python: model.load_weights("{path}")'],
    }


def describe_tokenizer(path: pathlib.Path) -> Facts:
    """Describes a file of `Tokenizer.save` or `save_files`."""
    from keras_transformer.text import Tokenizer

    tokenizer = Tokenizer.load(path)
    facts = tokenizer.describe()
    return {
        "class": type(tokenizer).__name__,
        **size_and_date(path),
        **facts,
        "tokens": " ".join(map(repr, facts["tokens"])),
        "next": [f'in Python: keras_transformer.Tokenizer.load("{path}")'],
    }


def describe_sentence_piece(path: pathlib.Path) -> Facts:
    """Describes a SentencePiece model."""
    import sentencepiece

    from keras_transformer.text.sentence_piece_tokenizer import model_type

    proto = read_file(path)
    try:
        model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except RuntimeError as error:
        raise ValueError(
            f"{path} must be a SentencePiece model; it is damaged or another file."
        ) from error
    special = {"pad": model.pad_id(), "unknown": model.unk_id()}
    special |= {"start": model.bos_id(), "end": model.eos_id()}
    ordinary = (i for i in range(len(model)) if i not in special.values())
    tokens = map(model.id_to_piece, itertools.islice(ordinary, SHOWN_TOKENS))
    return {
        **size_and_date(path),
        "vocabulary_size": len(model),
        "model_type": model_type(proto),
        **{f"{n}_token_id": i if i >= 0 else "none" for n, i in special.items()},
        "tokens": " ".join(map(repr, tokens)),
    }

"""Model cards, and readable descriptions of models and SavedModels."""

import datetime
import os
import pathlib
from collections.abc import Mapping
from importlib import import_module

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo

from keras_transformer.layers.positions.scheme import position_pair
from keras_transformer.models import GenerativeModel, Seq2Seq, TextEncoder
from keras_transformer.models.encoder_model import EncoderModel
from keras_transformer.types import Data
from keras_transformer_runtime.model_paths import is_version

FILE = "README.md"
# Sections that only the author of a model can write: Mitchell et al. (2019), section 4.
SECTIONS = (
    "intended_use",
    "training_data",
    "evaluation_data",
    "figures",
    "limitations",
    "licence",
)
NOT_PROVIDED = "Not provided."
INTERNAL_SIGNATURE = "__saved_model_init_op"

# Values by name, a row of a table each.
Facts = Mapping[str, object]


def describe_model(model: GenerativeModel | EncoderModel) -> dict[str, object]:
    """Describes a model.

    Args:
        model: the model, such as a `Seq2Seq`, an `Ensemble` or a `TextClassifier`.

    Returns:
        Numbers and strings by name.
    """
    if isinstance(model, EncoderModel):
        return _describe_encoder(model)
    members = getattr(model, "models", [model])  # several of an `Ensemble`
    first = members[0]
    facts: dict[str, object] = {
        "class": type(model).__name__,
        "parameters": f"{model.count_params():,}",
    }
    if len(members) > 1:
        facts["models"] = len(members)
    if isinstance(first, Seq2Seq):
        names = [
            *("num_layers", "num_decoder_layers", "hidden_dim", "intermediate_dim"),
            "num_heads",
        ]
        facts |= {name: getattr(first, name) for name in names}
        pair = position_pair(first.positions)
        schemes = dict.fromkeys(type(scheme) for scheme in pair if scheme is not None)
        facts["positions"] = ", ".join(scheme.__name__ for scheme in schemes)
    sides = ("source", "target") if model.has_cross_attention else ("target",)
    for side in sides:
        tokenizer = getattr(model, f"{side}_tokenizer")
        size = getattr(model, f"{side}_vocabulary_size")
        spec = getattr(model, "source_spec", None)
        if side == "source" and spec is not None:
            shape, dtype = spec
            sizes = ["·" if size is None else str(size) for size in shape or ()]
            facts["source"] = f"{dtype or 'array'} ({', '.join(sizes) or '…'})"
            continue
        kind = "no tokenizer" if tokenizer is None else type(tokenizer).__name__
        prefix = f"{side} " if model.has_cross_attention else ""
        facts[f"{prefix}vocabulary"] = f"{size:,}, {kind}"
        limit = model.length_arguments[-1 if side == "target" else 0]
        facts[limit] = getattr(model, f"max_{side}_length")
    return facts


def _describe_encoder(model: EncoderModel) -> dict[str, object]:
    encoder: Data = model
    if not isinstance(model, TextEncoder):
        encoder = model.encoder  # of a classifier
    kind = "no tokenizer"
    if model.tokenizer is not None:
        kind = type(model.tokenizer).__name__
    facts: dict[str, object] = {
        "class": type(model).__name__,
        "parameters": f"{model.count_params():,}",
        "num_layers": encoder.num_layers,
        "hidden_dim": encoder.hidden_dim,
        "vocabulary": f"{encoder.vocabulary_size:,}, {kind}",
        "max_length": model.max_length,
    }
    if isinstance(model, TextEncoder):
        return facts
    return {**facts, "classes": ", ".join(getattr(model, "class_names", []))}


def describe_signatures(filepath: str | os.PathLike) -> dict[str, str]:
    """Describes the signatures of a SavedModel.

    Args:
        filepath: folder of the SavedModel.

    Returns:
        The inputs and outputs of each signature, with dtypes and shapes. A dot stands
        for any size.

    Raises:
        OSError: if there is no SavedModel.
        ValueError: if the SavedModel is damaged.

    Example:

    ```python
    print(describe_signatures("saved_models/pronounce/1")["serving_default"])
    # text string(·,) → score float32(·,), text string(·,), truncated bool(·,)
    ```
    """
    file = pathlib.Path(filepath, "saved_model.pb")
    content = file.read_bytes()
    try:
        (graph, *_) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    except (DecodeError, ValueError) as error:
        raise ValueError(f"{file} must be a SavedModel; it is damaged.") from error
    return {
        name: f"{_describe(signature.inputs)} → {_describe(signature.outputs)}"
        for name, signature in sorted(graph.signature_def.items())
        if name != INTERNAL_SIGNATURE
    }


def _describe(tensors: Mapping[str, TensorInfo]) -> str:
    """Describes `TensorInfo` messages."""
    return ", ".join(
        f"{name} {tf.dtypes.as_dtype(info.dtype).name}{_shape(info.tensor_shape)}"
        for name, info in sorted(tensors.items())
    )


def _shape(shape: TensorShapeProto) -> str:
    return str(tf.TensorShape(shape)).replace("None", "·")


def write_card(
    folder: pathlib.Path,
    title: str,
    usage: str,
    tables: Mapping[str, Facts],
    card: Facts,
) -> None:
    """Writes a model card.

    `tables` are facts of the library, by section, and `card` those of the author; a
    section of `SECTIONS` without a fact is shown as not provided. `usage` is an example
    in Markdown.
    """
    sections = {name: _table(table) for name, table in tables.items()}
    provided = {**dict.fromkeys(SECTIONS, NOT_PROVIDED), **card}
    for name, fact in provided.items():
        words = name.replace("_", " ")
        content = _table(fact) if isinstance(fact, Mapping) else str(fact)
        sections[words[:1].upper() + words[1:]] = content
    parts = [f"# {title}", usage]
    parts += [f"## {name}\n\n{content}" for name, content in sections.items()]
    (folder / FILE).write_text("\n\n".join(parts) + "\n", "utf-8")


def package_versions() -> dict[str, str]:
    """Returns the date, and the versions of the packages that write the model."""
    packages = ("keras_transformer", "keras", "tensorflow")
    versions = {name: import_module(name).__version__ for name in packages}
    return {"date": datetime.date.today().isoformat(), **versions}


def model_name(folder: str | os.PathLike) -> str:
    """Returns the name of the model in a folder `name/version` or `name`."""
    path = pathlib.Path(folder).absolute()
    return path.parent.name if is_version(path.name) else path.name


def _table(facts: Facts) -> str:
    rows = [f"| {name} | {_cell(fact)} |" for name, fact in facts.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _cell(fact: object) -> str:
    return str(fact).replace("|", "\\|").replace("\n", " ")

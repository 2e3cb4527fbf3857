"""The model card, which describes a model to those who get it without its code."""

import datetime
import pathlib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

FILE = "README.md"
# What only people know, by Mitchell et al. (2019), section 4.
SECTIONS = (
    "intended_use",
    "training_data",
    "evaluation_data",
    "figures",
    "limitations",
    "licence",
)
NOT_SAID = "Not said by whoever exported the model."


def describe_model(model: Any) -> dict[str, Any]:
    """Describes a model.

    Args:
        model: a `Seq2Seq` or an `Ensemble`.

    Returns:
        Numbers and texts by name.
    """
    members = getattr(model, "models", [model])
    first = members[0]
    facts: dict[str, Any] = {
        "class": type(model).__name__,
        "parameters": f"{model.count_params():,}",
    }
    if len(members) > 1:
        facts["models"] = len(members)
    names = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads")
    facts |= {name: getattr(first, name) for name in names}
    facts["positions"] = type(first.positions).__name__
    for side in ("source", "target"):
        tokenizer = getattr(model, f"{side}_tokenizer")
        size = getattr(model, f"{side}_vocabulary_size")
        kind = "no tokenizer" if tokenizer is None else type(tokenizer).__name__
        facts[f"{side} vocabulary"] = f"{size:,}, {kind}"
        facts[f"max_{side}_length"] = getattr(model, f"max_{side}_length")
    return facts


def write_card(
    folder: pathlib.Path,
    title: str,
    use: str,
    tables: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> None:
    """Writes a model card.

    Args:
        folder: where.
        title: name of the model.
        use: an example in Markdown.
        tables: what is known, by the title of a section.
        facts: what the user says; see `export_saved_model`. What is not said of
            `SECTIONS` is shown as missing.
    """
    sections = {name: _table(table) for name, table in tables.items()}
    said = {**dict.fromkeys(SECTIONS, NOT_SAID), **facts}
    for name, fact in said.items():
        words = name.replace("_", " ")
        content = _table(fact) if isinstance(fact, Mapping) else str(fact)
        sections[words[:1].upper() + words[1:]] = content
    parts = [f"# {title}", use]
    parts += [f"## {name}\n\n{content}" for name, content in sections.items()]
    (folder / FILE).write_text("\n\n".join(parts) + "\n", "utf-8")


def made_by() -> dict[str, str]:
    """The date, and the versions of the packages that write the model."""
    packages = ("keras_transformer", "keras", "tensorflow")
    versions = {name: import_module(name).__version__ for name in packages}
    return {"date": datetime.date.today().isoformat(), **versions}


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {_cell(fact)} |" for name, fact in facts.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _cell(fact: Any) -> str:
    return str(fact).replace("|", "\\|").replace("\n", " ")

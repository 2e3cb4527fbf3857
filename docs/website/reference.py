"""The pages of the API reference, in Markdown of MyST."""

import re
from collections.abc import Mapping, Sequence

from website.docstrings import markdown, summary
from website.entries import (
    GROUPS,
    PACKAGE,
    Entry,
    described_by,
    members,
    problems,
    signature,
)

METHODS = """```{rubric} Methods of base classes and protocols
```

| method | what it does | arguments |
| --- | --- | --- |"""


def page(entry: Entry, described: Mapping[str, Sequence[Entry]]) -> str:
    """Returns the page of an entry with its members, in Markdown of MyST.

    Args:
        entry: the entry of a public name.
        described: see `described_methods`.

    Returns:
        str, the page. For a method with a shorter docstring, it refers to the method
        that describes the arguments.
    """
    title, guide = GROUPS[entry.group]
    full, rows = [], []
    for member in members(entry):
        target = described_by(member, described) if problems(member) else None
        if target is None:
            full.append(_directive(member))
        else:
            link = f"{{py:obj}}`{target.name} <{target.full_name}>`"
            rows.append(f"| `{member.method}` | {summary(member.doc)} | {link} |")
    if rows:
        full.append("\n".join([METHODS, *rows]))
    parts = [
        f"# {entry.name}",
        f"```{{py:currentmodule}} {entry.module}\n```",
        _directive(entry, ":" * 6, full),
        f"Guide: [{title}](../{guide}).",
    ]
    return "\n\n".join(parts) + "\n"


def _directive(
    entry: Entry,
    fence: str = ":" * 5,
    inner: Sequence[str] = (),
) -> str:
    options = []
    if isinstance(entry.value, classmethod):
        options.append(":classmethod:")
    if isinstance(entry.value, staticmethod):
        options.append(":staticmethod:")
    if getattr(entry.value, "_is_protocol", False):
        options.append(":abstract:")
    head = [f"{fence}{{py:{entry.kind}}} {entry.name}{_call(entry)}", *options]
    content = [markdown(entry.doc), *inner, fence]
    return "\n".join(head) + "\n\n" + "\n\n".join(content)


def _call(entry: Entry) -> str:
    if entry.kind in ("data", "property"):
        return ""
    return re.sub(r"<[^<>]*(<[^<>]*>)?[^<>]*>", "...", str(signature(entry)))


def index(group: str, found: Mapping[str, Entry]) -> str:
    """Returns the page of a group, a table of its names, in Markdown of MyST."""
    title, guide = GROUPS[group]
    chosen = [entry for entry in found.values() if entry.group == group]
    rows = [f"| [`{e.file}`]({e.file}.md) | {summary(e.doc)} |" for e in chosen]
    top = [e.name for e in chosen if e.module == PACKAGE]
    imports = "import keras_transformer as kt" + (f"  # kt.{top[0]}" if top else "")
    if len(top) < len(chosen):
        own = next(e for e in chosen if e.module != PACKAGE)
        imports += f"\nfrom {own.module} import {own.name}"
    lines = [
        f"# {title}\n",
        f"Guide: [{title}](../{guide}).\n",
        f"```python\n{imports}\n```\n",
        "| name | what it is |\n| --- | --- |",
        *rows,
        "\n```{toctree}\n:hidden:\n",
        *(f"{e.name} <{e.file}>" for e in chosen),
        "```",
    ]
    return "\n".join(lines) + "\n"


def all_names(found: Mapping[str, Entry]) -> str:
    """Returns the page with the names of all groups, in Markdown of MyST."""
    rows = []
    for group, (title, _) in GROUPS.items():
        names = [e for e in found.values() if e.group == group]
        links = ", ".join(f"[`{e.file}`]({e.file}.md)" for e in names)
        rows.append(f"| [{title}]({group}.md) | {links} |")
    return "\n".join(
        [
            "# API reference\n",
            "All public names of `keras_transformer`, by the package that defines "
            "them:\n",
            "```python\nimport keras_transformer as kt\n```\n",
            "| package | names |\n| --- | --- |",
            *rows,
            "",
        ]
    )

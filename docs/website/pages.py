"""The pages of the site that are written from other files of the repository.

`write` creates them in `docs/`, where Git ignores them: the index from README.md,
the API reference from the docstrings, a page of each example and tutorial, and those of
the project. `linked` adapts the links of a page, which point to files of the
repository.
"""

import ast
import json
import os
import pathlib
import re

from website import reference
from website.entries import GROUPS, PACKAGE, described_methods, entries

DOCS = pathlib.Path(__file__).parents[1]
ROOT = DOCS.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TUTORIALS = [
    ROOT / f"examples/tutorials/{name}.py"
    for name in ("translation", "attention", "marian", "language_model")
]

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))

# The sections of the navigation, with their pages in the order of the sidebar.
NAVIGATION = {
    "Start": ("getting_started",),
    "Guides": (
        *(
            "training",
            "data",
            "language_models",
            "layers",
            "families",
            "classifying",
            "translating",
        ),
        *("decoding", "serving", "saved_model", "ctranslate2", "backends", "scaling"),
        *("sharing", "interoperability", "migration", "pictures"),
    ),
    "Tutorials": (
        *(f"tutorials/{path.stem}" for path in [*NOTEBOOKS, *TUTORIALS]),
        "examples/index",
    ),
    "Reference": (
        "reference/index",
        *(f"reference/{group}" for group in GROUPS),
    ),
    "Project": (
        *("project/changelog", "project/benchmarks", "project/contributing"),
        *("project/security", "source_tree", "project/private_names", "releasing"),
    ),
}
# Files of the repository that are pages of the site, with the names of the pages.
PAGES = {
    "README.md": "index",
    "docs/README.md": "index",
    "examples/README.md": "examples/index",
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
    "benchmarks/README.md": "project/benchmarks",
    "keras_transformer/backend/README.md": "project/private_names",
    "saved_models/pronounce/README.md": "examples/saved_model",
    "saved_models/pronounce/1/README.md": "examples/model_card",
    **{f"examples/{path.name}": f"examples/{path.stem}" for path in EXAMPLES},
    **{f"examples/tutorials/{p.name}": f"tutorials/{p.stem}" for p in TUTORIALS},
    **{f"examples/notebooks/{p.name}": f"tutorials/{p.stem}" for p in NOTEBOOKS},
}
# Where the links of a page start: the file that the page is written from.
ORIGINS = {page: file for file, page in PAGES.items()} | {"index": "docs/README.md"}
LINK = re.compile(r"\[([^][]*)\]\((?!\w+:)([^()#\s]+)(#[^()\s]*)?\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def write() -> None:
    """Writes all pages; leaves those that are up to date and removes all others."""
    pages = {**_project(), **_examples(), **_reference()}
    for folder in ("examples", "project", "reference", "tutorials"):
        for path in (DOCS / folder).glob("*.md"):
            if path.relative_to(DOCS).with_suffix("").as_posix() not in pages:
                path.unlink()
    for name, text in pages.items():
        path = DOCS / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def linked(text: str, page: str) -> str:
    """Adapts the links of a page to the site.

    Args:
        text: str, Markdown with links that are relative to the file in the repository.
        page: str, the name of the page.

    Returns:
        str, the text with links to pages. A link to another file is relative to the
        page, one to a folder of the package is to its part of the reference, and one to
        another folder is its text.
    """
    origin = pathlib.PurePosixPath(ORIGINS.get(page, f"docs/{page}.md")).parent

    def replaced(match: re.Match[str]) -> str:
        target = _target(os.path.normpath(origin / match[2]))
        if target.is_dir():
            return match[1]
        path = os.path.relpath(target, (DOCS / page).parent)
        return f"[{match[1]}]({path}{match[3] or ''})"

    parts = FENCE.split(text.replace("```math\n", "```{math}\n"))
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def tutorial(source: str) -> str:
    """Converts a tutorial, a Python file, to Markdown.

    The docstring is the beginning of the page. Lines with a comment that follow an
    empty line, and have one behind them, are paragraphs; all other lines are code.
    """
    docstring, code = _split(source)
    title, _, text = docstring.partition("\n")
    parts = [f"# {title.rstrip('.')}\n{text}"]
    for block in re.split(r"\n{2,}(?=# |\S)", f"\n\n{code}".rstrip() + "\n"):
        text = block.strip("\n")
        if text and all(line.startswith("#") for line in text.splitlines()):
            parts.append(re.sub("^# ?", "", text, flags=re.MULTILINE))
        elif text and parts[-1].endswith("\n```"):
            gap = "\n\n\n" if "\n\n\n" + text in code else "\n\n"
            parts[-1] = f"{parts[-1].removesuffix('```')}{gap[1:]}{text}\n```"
        elif text:
            parts.append(f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def notebook(source: str) -> str:
    """Converts a notebook to Markdown, without its outputs."""
    parts = []
    for cell in json.loads(source)["cells"]:
        text = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        parts.append(f"```python\n{text}\n```" if is_code else text)
    return "\n\n".join(parts) + "\n"


def _target(path: str) -> pathlib.Path:
    """Returns the file that a link to a path of the repository goes to on the site."""
    if path in PAGES:
        return DOCS / f"{PAGES[path]}.md"
    first, _, rest = path.partition("/")
    group = rest.partition("/")[0].removesuffix(".py")
    if first == PACKAGE and group in GROUPS:
        return DOCS / f"reference/{group}.md"
    return ROOT / path


def _project() -> dict[str, str]:
    """Returns the index and the pages from Markdown files outside this folder."""
    pages = {
        page: (ROOT / file).read_text("utf-8")
        for file, page in PAGES.items()
        if file.endswith(".md") and (ROOT / file).exists()
    }
    pages["index"] = (DOCS / "README.md").read_text("utf-8")
    for title, names in NAVIGATION.items():
        names = "\n".join(names)
        pages["index"] += (
            f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{names}\n```\n"
        )
    names = [path.stem for path in EXAMPLES]
    pages["examples/index"] += _toctree([*names, "saved_model", "model_card"])
    return pages


def _examples() -> dict[str, str]:
    pages = {}
    for path in EXAMPLES:
        docstring, code = _split(path.read_text("utf-8"))
        text = f"# {path.name}\n\n{docstring}\n\n```python\n{code}```\n"
        pages[f"examples/{path.stem}"] = text
    for path in TUTORIALS:
        pages[f"tutorials/{path.stem}"] = tutorial(path.read_text("utf-8"))
    for path in NOTEBOOKS:
        pages[f"tutorials/{path.stem}"] = notebook(path.read_text("utf-8"))
    return pages


def _reference() -> dict[str, str]:
    found = entries()
    described = described_methods(found)
    pages = {
        f"reference/{entry.file}": reference.page(entry, described)
        for entry in found.values()
    }
    for group in GROUPS:
        pages[f"reference/{group}"] = reference.index(group, found)
    pages["reference/index"] = reference.all_names(found)
    return pages


def _split(source: str) -> tuple[str, str]:
    """Splits a module into its docstring and its code."""
    tree = ast.parse(source)
    end = tree.body[0].end_lineno
    code = "".join(source.splitlines(keepends=True)[end:])
    return ast.get_docstring(tree), code.lstrip("\n")


def _toctree(names: list[str]) -> str:
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"

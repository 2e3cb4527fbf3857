"""Docstrings in the style of Keras: their sections, as Markdown of MyST."""

import re
import textwrap
from collections.abc import Iterator

SECTIONS = (
    *("Args", "Call arguments", "Attributes", "Returns", "Yields", "Raises"),
    *("Example", "References"),
)
TITLES = {"Args": "Arguments"}
NAMED = ("Args", "Call arguments", "Attributes")
ITEM = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): +(.*)", re.DOTALL)


def sections(doc: str) -> Iterator[tuple[str, str]]:
    """Yields the title and content of each section; that of the description is ""."""
    title, lines, fenced = "", [], False
    for line in doc.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and line.removesuffix(":") in SECTIONS and line.endswith(":"):
            yield title, textwrap.dedent("\n".join(lines)).strip("\n")
            title, lines = line.removesuffix(":"), []
        else:
            lines.append(line)
    yield title, textwrap.dedent("\n".join(lines)).strip("\n")


def items(content: str) -> Iterator[tuple[str, str]]:
    """Yields the names and the description of each item of a section."""
    for part in re.split(r"\n(?=\S)", content):
        if match := ITEM.fullmatch(part):
            first, _, rest = match[2].partition("\n")
            yield match[1], f"{first}\n{textwrap.dedent(rest)}".strip()


def described_arguments(doc: str, *titles: str) -> list[str]:
    """Returns the names in the sections of arguments and attributes of a docstring."""
    return [
        name.strip("* ")
        for title, content in sections(doc)
        if title in (titles or NAMED)
        for names, _ in items(content)
        for name in names.split(",")
    ]


def summary(doc: str) -> str:
    """Returns the first paragraph of a docstring as one line."""
    return " ".join(doc.split("\n\n")[0].split()).replace("|", "\\|")


def markdown(doc: str) -> str:
    """Converts a docstring in the style of Keras to Markdown of MyST."""
    return "\n\n".join(
        _section(title, _with_fences(content))
        for title, content in sections(doc)
        if content
    )


def _section(title: str, content: str) -> str:
    heading = f"```{{rubric}} {TITLES.get(title, title)}\n```\n\n" if title else ""
    found = list(items(content))
    if title == "Raises" or (title in NAMED and found):
        return heading + "\n\n".join(
            f"{_code(names)}\n: {textwrap.indent(text, '  ').lstrip()}"
            for names, text in found
        )
    return heading + content


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _with_fences(content: str) -> str:
    """Puts interactive examples, which end at an empty line, into fences."""
    blocks = re.split(r"(^```.*?^```$)", content, flags=re.MULTILINE | re.DOTALL)
    interactive = re.compile(r"^>>> .*?(?=\n\n(?!>>> )|\Z)", re.MULTILINE | re.DOTALL)
    blocks[::2] = [
        interactive.sub(lambda m: f"```pycon\n{m.group()}\n```", b) for b in blocks[::2]
    ]
    return "".join(blocks)

"""Configuration of Sphinx, for `make docs`."""

import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

from docutils import nodes  # noqa: E402
from docutils.utils.math import MathError, latex2mathml  # noqa: E402
from sphinx import addnodes  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.util import logging  # noqa: E402
from website import entries, pages  # noqa: E402

import keras_transformer  # noqa: E402

project = "keras_transformer"
author = "The keras_transformer authors"
version = release = keras_transformer.__version__

extensions = ["myst_parser", "sphinx.ext.viewcode"]
exclude_patterns = ["README.md", "_build"]
nitpicky = True
add_module_names = False
toc_object_entries_show_parents = "hide"
viewcode_line_numbers = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "html_image"]
myst_heading_anchors = 4

html_math_renderer = "mathml"
pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

logger = logging.getLogger(__name__)
ENTRIES = entries.entries()


def linked_names() -> dict[str, str]:
    """Returns the full names of public names, by what pages call them.

    They are names of the top level, with or without `kt.`, and names of a module, with
    the module or, if they have an underscore and no argument has the name, without it.
    A method that another one describes has no entry of its own: it has that one's name.
    """
    described = entries.described_methods(ENTRIES)
    arguments = {name for e in ENTRIES.values() for name in entries.parameters(e)}
    names = {}
    for entry in ENTRIES.values():
        for item in [entry, *entries.members(entry)]:
            short = item.full_name.removeprefix(f"{entries.PACKAGE}.")
            spellings = [item.full_name, short, f"kt.{short}"]
            if "_" in entry.name and item.name not in arguments:
                spellings.append(item.name)
            other = item is not entry and entries.problems(item)
            target = entries.described_by(item, described) if other else None
            names |= dict.fromkeys(spellings, (target or item).full_name)
    return names


NAMES = linked_names()


def adapt_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Adapts the links of a page to the site."""
    source[0] = pages.linked(source[0], page)


def link_names(app: Sphinx, tree: nodes.document) -> None:
    """Links public names in code to the reference, except on their own page.

    On a page of the reference, the classes of its module have no other name.
    """
    page = app.env.docname.removeprefix("reference/")
    own = next((e for e in ENTRIES.values() if e.file == page), None)
    names = (
        NAMES
        if own is None
        else NAMES
        | {
            e.name: e.full_name
            for e in ENTRIES.values()
            if e.module == own.module and e.kind == "class"
        }
    )
    for literal in list(tree.findall(nodes.literal)):
        target = names.get(re.sub(r"\(.*\)$", "", literal.astext(), flags=re.DOTALL))
        within = (nodes.reference, addnodes.pending_xref, nodes.title, nodes.term)
        if not target or any(_is_within(literal, kind) for kind in within):
            continue
        if own is not None and f"{target}.".startswith(f"{own.full_name}."):
            continue
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=target, refexplicit=True
        )
        literal.replace_self(link)
        link += literal


def check_reference(app: Sphinx, env: object) -> None:
    """Warns of public names without an entry and of undocumented arguments."""
    documented = {name for name, *_ in env.domains["py"].get_objects()}
    described = entries.described_methods(ENTRIES)
    for module in ("", *keras_transformer._SUBMODULES):
        full = f"{entries.PACKAGE}.{module}".rstrip(".")
        owner = getattr(keras_transformer, module) if module else keras_transformer
        for name in getattr(owner, "__all__", ()):
            is_top = name in keras_transformer.__all__
            expected = f"{entries.PACKAGE if is_top else full}.{name}"
            if expected not in documented:
                logger.warning("the public name %s has no entry", expected)
    for message in entries.all_problems(ENTRIES, described):
        logger.warning(message)


def write_formula(writer: nodes.NodeVisitor, node: nodes.Element) -> None:
    """Writes a formula as MathML, which browsers show without a script."""
    is_block = isinstance(node, nodes.math_block)
    try:
        formula = latex2mathml.tex2mathml(node.astext(), as_block=is_block)
    except MathError as error:
        logger.warning("%s in the formula %s", error, node.astext(), location=node)
        formula = node.astext()
    tag = "div" if is_block else "span"
    writer.body.append(f'<{tag} class="formula">{formula}</{tag}>')
    raise nodes.SkipNode


def _is_within(node: nodes.Node, kind: type) -> bool:
    while node is not None and not isinstance(node, kind):
        node = node.parent
    return node is not None


def setup(app: Sphinx) -> None:
    """Writes the generated pages and connects the functions above."""
    pages.write()
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("source-read", adapt_links)
    app.connect("doctree-read", link_names)
    app.connect("env-check-consistency", check_reference)

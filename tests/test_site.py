"""The pages that `make docs` writes, without Sphinx, which checks their links."""

import inspect
import json
import sys

import pytest
from documented import ROOT

import keras_transformer

sys.path.append(str(ROOT / "docs"))

from website import docstrings, pages, reference  # noqa: E402
from website import entries as public  # noqa: E402

pytestmark = pytest.mark.once("torch")


@pytest.fixture(scope="module")
def entries():
    return public.entries()


def entry(value, name="module.thing"):
    doc = inspect.cleandoc(value.__doc__ or "")
    return public.Entry("module", name.partition(".")[2], "layers", value, doc)


# The reference.


def test_public_names_have_entries(entries):
    expected = {f"keras_transformer.{name}" for name in keras_transformer.__all__}
    for name in keras_transformer._SUBMODULES:
        module = getattr(keras_transformer, name)
        names = {*getattr(module, "__all__", ())} - {*keras_transformer.__all__}
        expected |= {f"{module.__name__}.{name}" for name in names}
    assert expected <= entries.keys()
    assert "keras_transformer.evaluation.bleu" in entries
    assert {entry.group for entry in entries.values()} == public.GROUPS.keys()


def test_every_argument_is_described(entries):
    described = public.described_methods(entries)
    assert public.all_problems(entries, described) == []


def undocumented(a):
    return a


def missing(a, *, b=1):  # noqa: D417
    """Adds.

    Args:
        a: int.
    """
    return a + b


def misspelt(a):  # noqa: D417
    """Returns `a`.

    Args:
        aa: int.
    """
    return a


@pytest.mark.parametrize(
    ("function", "messages"),
    [
        (undocumented, ["module.thing has no docstring"]),
        (missing, ["module.thing has no description of the argument `b`"]),
        (
            misspelt,
            [
                "module.thing has no description of the argument `a`",
                "module.thing describes `aa`, which is no argument",
            ],
        ),
    ],
)
def test_what_a_docstring_lacks(function, messages):
    assert public.problems(entry(function)) == messages


def test_a_method_may_refer_to_another_with_the_same_arguments():
    class Base:
        def step(self, state, index):
            """Steps.

            Args:
                state: the state.
                index: int.
            """

    class Model:
        def step(self, state, index):
            """Steps; see `Base.step`."""

        def other(self, state):
            """Does something else."""

    entries = {c.__name__: entry(c, f"module.{c.__name__}") for c in (Base, Model)}
    for value in (Base, Model):
        value.__module__ = "keras_transformer.models"
        value.__doc__ = "A class."
    described = public.described_methods(entries)
    step, other = public.members(entries["Model"])
    assert public.described_by(step, described).name == "Base.step"
    assert public.described_by(other, described) is None


DOCSTRING = """Adds numbers.

See `b`.

Args:
    a: int, a number
        of two lines.
    *b, **c: more numbers.

Raises:
    ValueError: if `a` is odd.

Example:

>>> add(1)
1
"""
MARKDOWN = """Adds numbers.

See `b`.

```{rubric} Arguments
```

`a`
: int, a number
  of two lines.

`*b`, `**c`
: more numbers.

```{rubric} Raises
```

`ValueError`
: if `a` is odd.

```{rubric} Example
```

```pycon
>>> add(1)
1
```"""


def test_a_docstring_in_markdown():
    assert docstrings.markdown(DOCSTRING.rstrip()) == MARKDOWN


def test_pages_of_entries(entries):
    described = public.described_methods(entries)
    page = reference.page(entries["keras_transformer.BeamSearch"], described)
    assert "{py:class} BeamSearch(num_beams=4, length_penalty=0.6," in page
    assert "| `advance` | " in page and "`Search.advance <" in page
    page = reference.page(entries["keras_transformer.Seq2Seq"], described)
    assert ":{py:method} Seq2Seq.from_preset(preset, " in page
    assert "`[" not in reference.index("layers", entries).replace("[`", "")


# The links of pages.


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("training", "[a](data.md#batches)", "[a](data.md#batches)"),
        ("training", "[a](../examples/write.py)", "[a](examples/write.md)"),
        ("training", "[a](../keras_transformer/text)", "[a](reference/text.md)"),
        (
            "training",
            "[a](../examples/notebooks/first_steps.ipynb)",
            "[a](tutorials/first_steps.md)",
        ),
        ("training", "[a](#data)", "[a](#data)"),
        ("training", "[a](https://keras.io)", "[a](https://keras.io)"),
        ("training", "[a](../LICENSE)", "[a](../LICENSE)"),
        ("training", "[a](../benchmarks/tutorial_sides)", "a"),
        ("training", "```sh\n[a](../LICENSE/b)\n```", "```sh\n[a](../LICENSE/b)\n```"),
        ("index", "[a](../README.md)", "[a](index.md)"),
        ("examples/index", "[a](write.py)", "[a](write.md)"),
        ("examples/index", "[a](../docs/data.md#a)", "[a](../data.md#a)"),
        ("project/benchmarks", "![a](b/c.png)", "![a](../../benchmarks/b/c.png)"),
    ],
)
def test_links_of_a_page(page, link, expected):
    assert pages.linked(link, page) == expected


TUTORIAL = '''"""Title.

Text.
"""

import a

# A paragraph
# of two lines.

b = 1
# A comment.
c = 2


def d():
    # A comment.

    return 3
'''
TUTORIAL_PAGE = """# Title

Text.

```python
import a
```

A paragraph
of two lines.

```python
b = 1
# A comment.
c = 2


def d():
    # A comment.

    return 3
```
"""


def test_a_tutorial_as_a_page():
    assert pages.tutorial(TUTORIAL) == TUTORIAL_PAGE


def test_a_notebook_as_a_page():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": ["a = 1\n", "a"], "outputs": ["1"]},
    ]
    page = "# Title\nText.\n\n```python\na = 1\na\n```\n"
    assert pages.notebook(json.dumps({"cells": cells})) == page

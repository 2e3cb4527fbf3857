"""The public names: what they are, and what their docstrings lack."""

import ast
import dataclasses
import inspect
import pathlib
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import keras

import keras_transformer
from website.docstrings import described_arguments

# The title and the guide of each group of names, in the order of the pages.
GROUPS = {
    "models": ("Models", "training.md"),
    "layers": ("Layers", "layers.md"),
    "text": ("Tokenizers and text", "data.md#tokenizers"),
    "dataset": ("Datasets", "data.md"),
    "training": ("Training", "training.md"),
    "distribution": ("Several devices", "scaling.md"),
    "decoding": ("Decoding", "decoding.md"),
    "inference": ("Inference", "translating.md"),
    "file_translation": ("Files", "translating.md#files"),
    "evaluation": ("Evaluation", "translating.md#from-the-command-line"),
    "export": ("Export", "saved_model.md"),
    "interoperability": ("Models of other libraries", "interoperability.md"),
    "recipe": ("Training runs", "training.md#in-one-command"),
    "serving": ("Serving", "serving.md"),
    "plotting": ("Plotting", "pictures.md"),
}
CREATED = re.compile(r"`\w+` creates it")
PACKAGE = keras_transformer.__name__


@dataclasses.dataclass(frozen=True)
class Entry:
    """A public name, or a public member of a class.

    Attributes:
        module: str, the module that the name is imported from.
        name: str, its name in the module, with the class before a member.
        group: str, the package that defines it, a key of `GROUPS`.
        value: the object.
        doc: str, its docstring without indentation.
        owner: the class of a member.
        is_own: bool, whether a member is not inherited.
    """

    module: str
    name: str
    group: str
    value: Any
    doc: str
    owner: type = object
    is_own: bool = True

    @property
    def full_name(self) -> str:
        """The name with its module."""
        return f"{self.module}.{self.name}"

    @property
    def file(self) -> str:
        """The name of the page, without a suffix."""
        return self.full_name.removeprefix(f"{PACKAGE}.")

    @property
    def method(self) -> str:
        """The name of a member without its class."""
        return self.name.partition(".")[2]

    @property
    def kind(self) -> str:
        """The directive of Sphinx's domain of Python."""
        if "." in self.name:
            return "property" if isinstance(self.value, property) else "method"
        if inspect.isclass(self.value):
            return "class"
        return "function" if inspect.isfunction(self.value) else "data"


def entries() -> dict[str, Entry]:
    """Returns the entries of all public names, by their full names.

    A name of the top level has no second entry in the module that defines it, and a
    name of another package than `GROUPS` has none.
    """
    found = {}
    for name in keras_transformer.__all__:
        value = getattr(keras_transformer, name)
        group = value.__module__.removeprefix(f"{PACKAGE}.").partition(".")[0]
        if group not in GROUPS and name in keras_transformer._LAZY:
            group = keras_transformer._LAZY[name].partition(".")[0]
        found[f"{PACKAGE}.{name}"] = Entry(PACKAGE, name, group, value, _doc(value))
    for group in keras_transformer._SUBMODULES:
        module = getattr(keras_transformer, group)
        comments = _comments(module)
        for name in _names(module):
            if name not in keras_transformer.__all__:
                value = getattr(module, name)
                doc = comments.get(name) or _doc(value)
                entry = Entry(module.__name__, name, group, value, doc)
                found[entry.full_name] = entry
    return {name: entry for name, entry in found.items() if entry.group in GROUPS}


def members(entry: Entry) -> list[Entry]:
    """Returns the documented methods and properties of a class, own and inherited.

    Of the methods that Keras defines, only those are included that have a docstring of
    their own with arguments.
    """
    if entry.kind != "class":
        return []
    classes = [c for c in entry.value.__mro__ if c.__module__.startswith(PACKAGE)]
    found: dict[str, Entry] = {}
    for owner in classes:
        for name, value in vars(owner).items():
            public = not name.startswith("_") or name == "__call__"
            if public and name not in found and _is_member(value) and _doc(value):
                full = f"{entry.name}.{name}"
                found[name] = Entry(
                    *(entry.module, full, entry.group, value, _doc(value)),
                    owner=entry.value,
                    is_own=owner is entry.value,
                )
    return [
        member
        for name, member in found.items()
        if described_arguments(member.doc) or not _is_of_keras(name)
    ]


def described_methods(found: Mapping[str, Entry]) -> dict[str, list[Entry]]:
    """Returns the methods whose docstrings describe all arguments, by their names.

    Methods of the same name in other classes may have a shorter docstring.
    """
    methods: dict[str, list[Entry]] = {}
    for entry in found.values():
        for member in members(entry):
            if described_arguments(member.doc) and not problems(member):
                methods.setdefault(member.method, []).append(member)
    return {name: sorted(m, key=lambda m: not m.is_own) for name, m in methods.items()}


def described_by(
    member: Entry, described: Mapping[str, Sequence[Entry]]
) -> Entry | None:
    """Returns the method that describes the arguments of a method of a class.

    It is that of a base class or of another class, and has the same arguments.
    """
    expected = set(parameters(member))
    methods = [
        method
        for method in described.get(member.method, ())
        if expected <= set(described_arguments(method.doc))
    ]
    return min(methods, key=lambda m: m.owner not in member.owner.__mro__, default=None)


def problems(entry: Entry) -> list[str]:
    """Returns what the docstring of an entry lacks, as messages.

    It has a first sentence, a description of every argument, and no other arguments.
    A method may name an argument in a sentence instead.
    """
    if not entry.doc.strip():
        return [f"{entry.full_name} has no docstring"]
    described = described_arguments(entry.doc)
    expected = parameters(entry)
    messages = [
        f"{entry.full_name} has no description of the argument `{name}`"
        for name in expected
        if name not in described
        and not (entry.kind == "method" and f"`{name}`" in entry.doc)
    ]
    if entry.kind in ("function", "method"):
        arguments = described_arguments(entry.doc, "Args")
        messages += [
            f"{entry.full_name} describes `{name}`, which is no argument"
            for name in arguments
            if name not in expected
        ]
    return messages


def all_problems(
    found: Mapping[str, Entry], described: Mapping[str, Sequence[Entry]]
) -> list[str]:
    """Returns what the docstrings of all entries and their members lack."""
    return [
        message
        for entry in found.values()
        for item in [entry, *members(entry)]
        if item is entry or described_by(item, described) is None
        for message in problems(item)
    ]


def parameters(entry: Entry) -> list[str]:
    """Returns the names of the arguments of a function, method or constructor.

    The arguments of a constructor that is not the library's are left out.
    """
    if entry.kind == "class":
        owners = [c for c in entry.value.__mro__ if "__init__" in vars(c)]
        new = [c for c in entry.value.__mro__ if "__new__" in vars(c)]
        own = {c.__module__.split(".")[0] for c in (owners[0], new[0])}
        if PACKAGE not in own:
            return []
    if entry.kind in ("data", "property"):
        return []
    return [name for name in signature(entry).parameters if not name.startswith("_")]


def signature(entry: Entry) -> inspect.Signature:
    """Returns the signature without types, which the docstring describes.

    A protocol, an abstract class or a class whose docstring names the function that
    creates it has no constructor to call. A method that passes its arguments on to that
    of Keras has its own signature.
    """
    value = entry.value
    is_created = inspect.isclass(value) and CREATED.search(entry.doc)
    is_protocol = getattr(value, "_is_protocol", False)
    if is_created or is_protocol or inspect.isabstract(value):
        return inspect.Signature()
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if not inspect.isclass(value):
        value = inspect.unwrap(value, stop=_wraps_another_library)
    follow = inspect.isclass(value)
    parameters = inspect.signature(value, follow_wrapped=follow).parameters
    found = list(parameters.values())
    if entry.kind == "method" and not isinstance(entry.value, staticmethod):
        found = found[1:]
    return inspect.Signature([p.replace(annotation=p.empty) for p in found])


def _doc(value: Any) -> str:
    own = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    found = vars(own).get("__doc__") if inspect.isclass(own) else own.__doc__
    return inspect.cleandoc(found or "") + _field_descriptions(own)


def _field_descriptions(value: Any) -> str:
    """Returns a section of the fields whose annotations describe them."""
    if not dataclasses.is_dataclass(value):
        return ""
    hints = typing.get_type_hints(value, include_extras=True)
    hints |= {n: h.type for n, h in hints.items() if isinstance(h, dataclasses.InitVar)}
    lines = [
        f"    {name}: {hint.__metadata__[0]}"
        for name, hint in hints.items()
        if typing.get_origin(hint) is typing.Annotated
    ]
    return "\n".join(["\n\nArgs:", *lines]) if lines else ""


def _is_of_keras(name: str) -> bool:
    return hasattr(keras.Model, name) and name != "__call__"


def _wraps_another_library(value: Any) -> bool:
    return not value.__wrapped__.__module__.startswith(PACKAGE)


def _is_member(value: Any) -> bool:
    kinds = (property, classmethod, staticmethod)
    return inspect.isfunction(value) or isinstance(value, kinds)


def _names(module: Any) -> list[str]:
    """Returns `__all__`, or what a module without it defines."""
    if hasattr(module, "__all__"):
        return module.__all__
    tree = ast.parse(pathlib.Path(module.__file__).read_text("utf-8"))
    defined = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    return [name for name in [*defined, *_comments(module)] if name[0] != "_"]


def _comments(module: Any) -> dict[str, str]:
    """Returns the strings below the constants of a module, by the constants' names."""
    body = ast.parse(pathlib.Path(module.__file__).read_text("utf-8")).body
    return {
        target.id: inspect.cleandoc(after.value.value)
        for node, after in zip(body, body[1:], strict=False)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }

"""Public names of the package, their registration, version and requirements."""

import inspect
import re
import subprocess
import tomllib
from importlib import metadata

import keras
import pytest
from documented import MODULES, PACKAGE, ROOT, RUNTIME

import keras_transformer
from keras_transformer_runtime.packages import (
    DEPENDENCIES,
    DISTRIBUTION,
    EXTRAS,
    INCLUDED,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_public_names():
    names = keras_transformer.__all__
    assert names == sorted(set(names))
    assert {*names} <= {*dir(keras_transformer)}
    for name in names:
        public = getattr(keras_transformer, name)
        assert public.__name__ == name
        assert inspect.getdoc(public), name
    with pytest.raises(AttributeError, match="no attribute 'Seq3Seq'"):
        keras_transformer.Seq3Seq  # noqa: B018


def test_modules_have_docstrings_and_the_names_of_their_all():
    for module in MODULES:
        assert module.__doc__, module
        for name in getattr(module, "__all__", []):
            assert hasattr(module, name), f"{module.__name__}.{name}"


def ours_with_configuration():
    """Our classes that Keras can save, without base classes and protocols."""
    classes = [
        value
        for module in MODULES
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return [
        value
        for value in classes
        if hasattr(value, "get_config")
        and not value.__name__.startswith("_")
        and not getattr(value, "_is_protocol", False)
        and not any(value in other.__bases__ for other in classes)
    ]


def test_serialisable_classes_are_registered():
    values = ours_with_configuration()
    assert keras_transformer.Seq2Seq in values
    for value in values:
        name = f"keras_transformer>{value.__name__}"
        assert keras.saving.get_registered_name(value) == name
        assert keras.saving.get_registered_object(name) is value


@pytest.mark.once("torch")
def test_version():
    installed = metadata.distributions(name=DISTRIBUTION)
    assert {found.version for found in installed} <= {keras_transformer.__version__}
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest, *_ = re.findall(r"^## \[(\d\S*)\]", changelog, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    (cited,) = re.findall(r"^version: (\S+)$", citation, re.MULTILINE)
    assert newest == cited == keras_transformer.__version__


@pytest.mark.once("torch")
def test_messages_advise_the_requirements_of_the_project():
    """A module with other requirements than the project would advise old versions."""
    assert PROJECT["name"] == DISTRIBUTION
    assert sorted(DEPENDENCIES.values()) == sorted(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        included = [f"{DISTRIBUTION}[{INCLUDED[extra]}]"] if extra in INCLUDED else []
        assert sorted([*included, *packages.values()]) == sorted(extras[extra])


# The name of the command as a requirement: `keras-transformer` in an installation, or
# with extras or a version.
TAKEN = r"keras[-_.]transformer(?![-\w])"
ADVICE = re.compile(
    rf"(?:pip3?|uv|pipx|conda|poetry)\s+(?:\w+\s+)*?(?:install|add|run)\b[^\n`]*?"
    rf"[ \t\"'=]{TAKEN}(?!/)|{TAKEN}\s*(?:\[[a-z]|[=<>~!]=)",
    re.IGNORECASE,
)


@pytest.mark.once("torch")
def test_no_text_advises_a_project_of_others():
    """`keras-transformer` on PyPI is another project."""
    assert ADVICE.search('pip install "keras-transformer[hub]"')
    assert not ADVICE.search('pip install "keras-transformer-toolkit[hub]"')
    command = ["git", "ls-files", "*.py", "*.md", "*.toml", "*.yml", "Makefile"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("the tests of a source distribution are not in a checkout")
    texts = {
        name: (ROOT / name).read_text("utf-8")
        for name in found.stdout.splitlines()
        if (ROOT / name).is_file() and name != "tests/test_package.py"
    }
    assert "pyproject.toml" in texts
    assert not [name for name, text in texts.items() if ADVICE.search(text)]


@pytest.mark.once("torch")
def test_few_types_are_any():
    files = [*PACKAGE.rglob("*.py"), *RUNTIME.rglob("*.py")]
    texts = [path.read_text("utf-8") for path in files]
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts) <= 400

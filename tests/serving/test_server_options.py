import pytest

from keras_transformer_runtime.serving.server import _cpus
from keras_transformer_runtime.serving.server_options import (
    make_server_options,
    read_server_options,
)

pytestmark = pytest.mark.once

FILE = """
port = 8080

[models.en-de]
folder = "here/en-de"
replicas = 3
versions = [1, 2]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "here/en-de").mkdir(parents=True)
    return tmp_path


def write(folder, text):
    (folder / "serving.toml").write_text(text, "utf-8")
    return folder / "serving.toml"


def test_a_file(folder):
    options = read_server_options(write(folder, FILE), port=8081, host="::1")
    assert (options.port, options.host, options.address) == (8081, "::1", None)
    model = options.models["en-de"]
    assert model.folder == (folder / "here/en-de").resolve()
    assert (model.replicas, model.versions, model.cpus) == (3, [1, 2], 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("port = 8080", "port = 70000"), "`port`: input should be less than or equal"),
        (("port = 8080", "ports = 1"), "there is no option `ports`"),
        (("port = 8080", "timeout_seconds = inf"), "`timeout_seconds`: .*finite"),
        (("port = 8080", "poll_seconds = inf"), "`poll_seconds`: .*finite"),
        (("port = 8080", "keep_alive_seconds = 0"), "`keep_alive_seconds`: .*than 0"),
        (("port = 8080", "header_seconds = nan"), "`header_seconds`: "),
        (("port = 8080", "max_connections_per_client = 0"), "_per_client`: .*equal to"),
        (("port = 8080", 'allowed_hosts = ["http://a"]'), "without scheme.*'http://a'"),
        (("port = 8080", 'allowed_hosts = ["*"]'), r"names such as .*'\*'"),
        (("port = 8080", 'allowed_hosts = "a"'), "`allowed_hosts`: .*valid tuple"),
        (("port = 8080", 'allowed_origins = ["*"]'), r"origins such as .*'\*'"),
        (("port = 8080", 'allowed_origins = ["null"]'), "origins such as .*'null'"),
        (("port = 8080", 'allowed_origins = ["a.com"]'), "origins such as .*'a.com'"),
        (("port = 8080", 'allowed_origins = ["https://a/"]'), "path.*'https://a/'"),
        (("port = 8080", 'allowed_origins = ["https://A"]'), "lower case.*'https://A'"),
        (("replicas = 3", "replica = 3"), "no option `models.en-de.replica`"),
        (("replicas = 3", "replicas = 0"), "`models.en-de.replicas`: .*or equal to 1"),
        (("replicas = 3", "replicas = 3\nmax_replicas = 2"), "at least replicas=3"),
        (("versions = [1, 2]", 'versions = "newest"'), "versions"),
        (("here/en-de", "nowhere"), "must be a folder of versions"),
        (("models.en-de", 'models."../etc"'), "must consist of letters"),
        (("[models.en-de]", "[models.en-de"), "must be a TOML file"),
        (("[models.en-de]", "[[models]]"), "`models`: input should be a valid dict"),
    ],
)
def test_bad_files(change, message, folder):
    with pytest.raises(ValueError, match=message):
        read_server_options(write(folder, FILE.replace(*change)))


def test_no_models():
    with pytest.raises(ValueError, match="`models`: dictionary should have at least 1"):
        make_server_options(models={})


@pytest.mark.parametrize(
    ("name", "given", "advice"),
    [
        ("here/en-de/1", "here/en-de/1", "Give the folder above it, {}/here/en-de$"),
        ("here/en-de", "here/en-de", "Move it to {}/here/en-de/1$"),
        ("here/en-de/1", "here", "Give one of them, such as {}/here/en-de$"),
    ],
)
def test_folders_that_are_not_models(name, given, advice, folder):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "saved_model.pb").touch()
    with pytest.raises(ValueError, match=advice.format(folder)) as found:
        make_server_options(models={"m": {"folder": folder / given}})
    message = "`models.m.folder`: must contain one folder per version, named 1, 2, …; "
    assert str(found.value).startswith(message)


def test_a_model_with_folders_beside_its_versions(folder):
    for name in ("here/en-de/1", "here/2"):
        (folder / name).mkdir()
        (folder / name / "saved_model.pb").touch()
    options = make_server_options(models={"m": {"folder": folder / "here"}})
    assert options.models["m"].folder == (folder / "here").resolve()


@pytest.mark.parametrize(
    ("versions", "count"), [("latest", 1), ("all", 3), ([1, 3], 2)]
)
def test_cores_are_counted_for_every_version_twice(versions, count, folder):
    for number in (1, 2, 3):
        version = folder / f"here/en-de/{number}"
        (version / "variables").mkdir(parents=True)
        (version / "saved_model.pb").touch()
        (version / "variables/variables.index").touch()
    model = {"folder": folder / "here/en-de", "versions": versions, "replicas": 50}
    assert _cpus(make_server_options(models={"en-de": model})) == 2 * 50 * count


@pytest.mark.parametrize("language", ["en\n", "\nen", "EN", "engl"])
def test_split_sentences_is_a_language(language, tmp_path):
    model = {"folder": tmp_path, "split_sentences": language}
    with pytest.raises(ValueError, match="split_sentences"):
        make_server_options(models={"m": model})
    with pytest.raises(ValueError, match="the name of a model must"):
        make_server_options(models={"m\n": {"folder": tmp_path}})


def test_hosts_and_origins(folder):
    hosts = ["models.example.com", "192.168.0.1", "::2"]
    origins = ["https://example.com", "http://localhost:3000", "http://[::1]:8080"]
    text = f"allowed_hosts = {hosts}\nallowed_origins = {origins}\n" + FILE
    options = read_server_options(write(folder, text))
    assert options.allowed_hosts == tuple(hosts)
    assert options.allowed_origins == tuple(origins)


def test_a_dictionary_is_relative_to_the_file(folder):
    (folder / "terms.tsv").write_text("York\tYorck\n")
    text = FILE + 'dictionary = "terms.tsv"\n'
    options = read_server_options(write(folder, text))
    (model,) = options.models.values()
    assert model.dictionary == folder / "terms.tsv"
    with pytest.raises(ValueError, match="dictionary`: path does not point to a file"):
        read_server_options(write(folder, text.replace("terms", "none")))

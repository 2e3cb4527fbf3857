import pytest

from keras_transformer_runtime.serving.server_options import (
    make_server_options,
    read_server_options,
)

pytestmark = pytest.mark.once("torch")

FILE = """
port = 8080

[models.en-de]
folder = "here/en-de"
max_tokens = 4096
versions = [1, 2]
languages = ["en", "pt-BR"]
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
    assert (options.port, options.host, options.api_key) == (8081, "::1", None)
    model = options.models["en-de"]
    assert model.folder == (folder / "here/en-de").resolve()
    assert (model.max_tokens, model.versions) == (4096, [1, 2])
    assert model.languages == ("en", "pt-BR")
    assert (model.engine, model.batch_sizes) == ("auto", (1, 4, 16))


def test_batch_sizes_are_in_order(folder):
    model = {"folder": folder / "here/en-de", "batch_sizes": [16, 1, 16, 4]}
    options = make_server_options(models={"m": model})
    assert options.models["m"].batch_sizes == (1, 4, 16)


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
        (("port = 8080", 'api_key = ""'), "`api_key`: .*match pattern"),
        (("port = 8080", 'api_key = "a key"'), "`api_key`: .*match pattern"),
        (("port = 8080", 'api_key = "schlüssel"'), "`api_key`: .*match pattern"),
        (("port = 8080", "processes = 0"), "`processes`: .*or equal to 1"),
        (("port = 8080", "threads = 0"), "`threads`: .*or equal to 1"),
        (("port = 8080", "max_beams = 0"), "`max_beams`: .*or equal to 1"),
        (("max_tokens = 4096", "max_token = 3"), "no option `models.en-de.max_token`"),
        (("max_tokens = 4096", "max_tokens = 0"), "`models.en-de.max_tokens`: .*equal"),
        (("max_tokens = 4096", "batch_sizes = []"), "batch_sizes`: .*at least 1 item"),
        (("max_tokens = 4096", 'engine = "onnx"'), "engine`: input should be 'auto'"),
        (('"pt-BR"]', '"pt BR"]'), "languages.1`: .*match pattern"),
        (('"pt-BR"]', '"pt", "es"]'), "languages`: .*at most 2 items"),
        (("versions = [1, 2]", 'versions = "newest"'), "versions"),
        (("here/en-de", "nowhere"), "must be the folder of a run, .*nowhere is not a"),
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


def test_a_folder_of_several_models(folder):
    (folder / "here/en-de/1").mkdir()
    (folder / "here/en-de/1/saved_model.pb").touch()
    message = (
        "`models.m.folder`: must contain one folder per version, named 1, 2, …; "
        f"{folder}/here has folders of several models. Give one of them, such as "
        f"{folder}/here/en-de"
    )
    with pytest.raises(ValueError, match=message):
        make_server_options(models={"m": {"folder": folder / "here"}})


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("here/en-de", "model.bin"),
        ("here/en-de/1", "saved_model.pb"),
        ("here/en-de/ctranslate2", "model.bin"),
        ("here/en-de/ctranslate2/1", "model.bin"),
        ("here/en-de/saved_model/1", "saved_model.pb"),
    ],
)
def test_folders_of_models_and_runs(name, file, folder):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / file).touch()
    given = folder / "here/en-de"
    options = make_server_options(models={"m": {"folder": given}})
    assert options.models["m"].folder == given.resolve()


def test_a_model_with_folders_beside_its_versions(folder):
    for name in ("here/en-de/1", "here/2"):
        (folder / name).mkdir()
        (folder / name / "saved_model.pb").touch()
    options = make_server_options(models={"m": {"folder": folder / "here"}})
    assert options.models["m"].folder == (folder / "here").resolve()


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

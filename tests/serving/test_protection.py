"""Keys, requests of other sites through a browser, and packed bodies."""

import gzip
import tracemalloc

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from keras_transformer_runtime.serving.protection import (
    OPEN_PATHS,
    BodyTooLarge,
    is_key,
    is_loopback,
    protect,
    unpack_gzip,
)
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once("torch")

ORIGIN = "https://example.com"


@pytest.fixture
def make_client(tmp_path):
    """Returns a client of an application that fails at `/fail`."""

    def make(**options):
        async def respond(request):
            if request.url.path == "/fail":
                raise OSError("a failure")
            return JSONResponse({"status": "ok"})

        async def fail(request, error):
            return JSONResponse({"error": "internal error"}, status_code=500)

        paths = [
            Route(path, respond, methods=["GET", "POST"])
            for path in ("/{path:path}", "/")
        ]
        application = Starlette(routes=paths, exception_handlers={Exception: fail})
        options = make_server_options(models={"m": {"folder": tmp_path}}, **options)
        return TestClient(
            protect(application, options),
            base_url="http://127.0.0.1:8501",
            raise_server_exceptions=False,
        )

    return make


def test_addresses_of_the_machine_itself():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    others = ("0.0.0.0", "::", "192.168.0.1", "example.com", "127.0.0.1.example.com")
    assert not any(map(is_loopback, (*others, "")))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8501", "LocalHost:1", "[::1]:8501", "a.example"]
)
def test_hosts_of_the_server(host, make_client):
    client = make_client(allowed_hosts=["A.example"])
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "127.0.0.1.evil.example",
            "evil.example:8501",
            "localhost@evil",
        ),
        *("", "[", "[::1", "127.0.0.1/x?y=", "127.0.0.1 evil", "a.example", "8.8.8.8"),
    ],
)
def test_other_hosts_are_refused(host, make_client):
    response = make_client().get("/", headers={"Host": host})
    assert response.status_code == 421
    assert "`allowed_hosts`" in response.json()["error"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"host": "0.0.0.0"}, 200),
        ({"host": "0.0.0.0", "allowed_hosts": ["b.example"]}, 421),
        ({"host": "a.example", "allowed_hosts": ["b.example"]}, 200),
        ({"host": "::1"}, 421),
    ],
)
def test_every_host_is_allowed_only_on_other_addresses(options, status, make_client):
    client = make_client(**options)
    assert client.get("/", headers={"Host": "a.example"}).status_code == status


OTHER_PAGES = [
    {"Origin": ORIGIN},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1"},  # another port
    {"Origin": "http://127.0.0.1:8501.example.com"},
    {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://127.0.0.1:8502", "Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", OTHER_PAGES)
def test_pages_of_other_origins_are_refused(headers, make_client):
    client = make_client(allowed_origins=["https://another.example.com"])
    for method in ("POST", "OPTIONS", "DELETE"):
        response = client.request(method, "/", headers=headers, content=b"a")
        assert response.status_code == 403
        assert "`allowed_origins`" in response.json()["error"]
    response = client.get("/", headers=headers)  # a link; the page cannot read it
    assert response.status_code == 200
    assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://127.0.0.1:8501"},
        {"Origin": "http://127.0.0.1:8501", "Sec-Fetch-Site": "same-origin"},
        # Behind a reverse proxy that changes `Host`.
        {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_pages_of_the_server_are_allowed(headers, make_client):
    assert make_client().post("/", headers=headers).status_code == 200


def test_allowed_origins(make_client):
    client = make_client(allowed_origins=[ORIGIN])
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}
    asking = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, content-encoding",
    }
    for response in (
        client.options("/", headers={**headers, **asking}),
        client.post("/", headers=headers),
        client.post("/fail", headers=headers),
    ):
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert response.headers["Vary"].split(", ")[0] == "Origin"
    assert client.get("/").status_code == 200
    response = client.get("/", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in response.headers


def test_two_hosts_are_refused(make_client):
    headers = [("Host", "127.0.0.1"), ("Host", "evil.example")]
    assert make_client().get("/", headers=headers).status_code == 421


KEY = "3Kq-7"


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health/", "/x"])
def test_a_key(path, make_client):
    client = make_client(api_key=KEY)
    for header in (f"Bearer {KEY}", f"bearer  {KEY} "):
        response = client.get(path, headers={"Authorization": header})
        assert response.status_code == 200
    for header in ("", KEY, f"Basic {KEY}", "Bearer", f"Bearer {KEY}x", "Bearer \xff"):
        headers = {"Authorization": header.encode("latin-1")}
        response = client.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "`Authorization: Bearer KEY`" in response.json()["error"]
    assert client.get(path).status_code == 401


def test_paths_without_a_key(make_client):
    client = make_client(api_key=KEY, allowed_origins=[ORIGIN])
    assert {client.get(path).status_code for path in OPEN_PATHS} == {200}
    asking = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    assert client.options("/v1/completions", headers=asking).status_code == 200
    assert client.post("/v1/completions").status_code == 401


def test_keys_are_compared_as_a_whole():
    assert is_key(KEY, KEY)
    for given in ("", KEY[:-1], KEY + "7", KEY.lower(), "\ud800", "ü"):
        assert not is_key(given, KEY)


def test_little_of_a_gzip_bomb_is_unpacked():
    bomb = gzip.compress(bytes(10_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            unpack_gzip(bomb, 1009)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()

"""Requests of other sites through a browser."""

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from keras_transformer_runtime.serving.protection import is_loopback, protect
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once

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
            Route(path, respond, methods=["GET", "POST"]) for path in ["/", "/fail"]
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

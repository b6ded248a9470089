"""Everything that is secret, on: who gets in, and what is printed meanwhile.

One `tt-serve` with TLS on both ports, a client authority, three tokens and API keys,
as talkative as it can be told to be.
"""

from __future__ import annotations

import http.client
import json
import signal
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
import pytest

from frontend.inspect.page import EVENTS_PATH, FILES
from tests.e2e.frontend_alone.test_surface import ALSO_SERVED, DESCRIBED
from tests.e2e.test_launcher import Serving, free_port, wait_until
from tests.support.certificates import Authority, Pair
from ttserve.v1 import device_pb2, device_pb2_grpc, inspector_pb2, inspector_pb2_grpc

BASE = "/base"
PROBES = {"/live", "/ready", "/health"}
OPEN = PROBES | FILES.keys()
SECRETS = {
    name: f"{name}-93b1c7"
    for name in ("key", "next-key", "device", "inspector", "control", "wrong")
}

pytestmark = pytest.mark.timeout(600)


@dataclass
class Site:
    """A running tt-serve and what its clients have to know."""

    serving: Serving
    directory: Path
    grpc_port: int
    authority: Authority
    client: Pair
    https: http.client.HTTPSConnection

    def ask(
        self,
        method: str,
        path: str,
        key: str | None = None,
        body: Any = None,
        **headers: str,
    ) -> tuple[int, str]:
        """Status and text; the path goes out as it is."""
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = json.dumps(body) if body is not None else None
        self.https.request(method, path, data, headers)
        response = self.https.getresponse()
        return response.status, response.read().decode()

    def channel(self) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(
            self.authority.ca.read_bytes(),
            self.client.key.read_bytes(),
            self.client.certificate.read_bytes(),
        )
        return grpc.secure_channel(f"127.0.0.1:{self.grpc_port}", credentials)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("secrets")
    for name, secret in SECRETS.items():
        (directory / name).write_text(secret)
    authority = Authority(directory / "authority")
    server, client = authority.pair("127.0.0.1"), authority.pair("frontend")
    files: dict[str, Path] = {
        "--grpc-tls-cert": server.certificate,
        "--grpc-tls-key": server.key,
        "--grpc-tls-client-ca": authority.ca,
        "--grpc-token-file": directory / "device",
        "--inspector-token-file": directory / "inspector",
        "--step-control-token-file": directory / "control",
        "--device-tls-ca": authority.ca,
        "--device-tls-cert": client.certificate,
        "--device-tls-key": client.key,
        "--api-key-file": directory / "key",
        "--ssl-certfile": server.certificate,
        "--ssl-keyfile": server.key,
    }
    grpc_port = free_port()
    serving = Serving(
        *(str(word) for pair in files.items() for word in pair),
        *("--mesh", "sim", "--enable-step-control", "--root-path", BASE),
        *("--uvicorn-log-level", "trace", "--enable-log-requests"),
        *("--enable-log-outputs", "--log-error-stack", "--shutdown-timeout", "3"),
        grpc_port=grpc_port,
    )
    try:
        serving.wait_for("ready in")
        https = http.client.HTTPSConnection(
            "127.0.0.1",
            serving.port,
            timeout=60,
            context=ssl.create_default_context(cafile=authority.ca),
        )
        yield Site(serving, directory, grpc_port, authority, client, https)
        https.close()
    finally:
        serving.process.send_signal(signal.SIGTERM)
        serving.exit_code()


def spellings(path: str) -> Sequence[str]:
    """Ways to write a path, some of which mean the same."""
    name = path.removeprefix("/")
    return (
        path,
        BASE + path,
        f"{path}/",
        f"/{path}",
        f"/.{path}",
        f"/x/..{path}",
        path.upper(),
        f"/%{ord(name[0]):02x}{name[1:]}",
        f"{path}?x=1",
        f"{path};a=b",
    )


def is_open(spelled: str) -> bool:
    path = unquote(spelled.partition("?")[0])
    return path in OPEN or path.removeprefix(BASE) in OPEN


def test_without_a_key_no_path_answers_but_the_open_ones(site: Site) -> None:
    described = json.loads(site.ask("GET", "/openapi.json", SECRETS["key"])[1])
    assert described["paths"].keys() == DESCRIBED.keys()
    paths = {*DESCRIBED, *ALSO_SERVED, *FILES, EVENTS_PATH, "/docs/oauth2-redirect"}
    paths |= {"/tokenizer_info", "/static", "/nothing"}
    answers = {
        (method, spelled, key): site.ask(method, spelled, key)
        for path in sorted(paths)
        for spelled in spellings(path)
        for method, key in (
            ("GET", None),
            ("HEAD", None),
            ("POST", None),
            ("OPTIONS", None),
            ("GET", SECRETS["wrong"]),
        )
    }
    let_in = {
        asked
        for asked, (status, _) in answers.items()
        if status != 401 and not is_open(asked[1])
    }
    assert not let_in
    for (method, spelled, _), (status, text) in answers.items():
        if is_open(spelled):
            assert status in (200, 405), (method, spelled)
            assert "127.0.0.1" not in text, spelled


def test_what_health_says_depends_on_the_key(site: Site) -> None:
    assert json.loads(site.ask("GET", "/health")[1]) == {"status": "ready"}
    told = json.loads(site.ask("GET", "/health", SECRETS["key"])[1])
    assert told["devices"][0]["address"] == f"127.0.0.1:{site.grpc_port}"


def test_a_preflight_reaches_nothing(site: Site) -> None:
    headers = {"Origin": "http://x", "Access-Control-Request-Method": "POST"}
    status, text = site.ask("OPTIONS", "/v1/completions", **headers)
    assert (status, text) == (200, "OK")


def test_errors_show_no_inside(site: Site) -> None:
    bodies: list[Any] = [{"prompt": 1}, {"prompt": {"a": None}}, [], "text", {"a": {}}]
    for body in bodies:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            status, text = site.ask("POST", path, SECRETS["key"], body)
            assert status == 400, (path, body, text)
            assert "Traceback" not in text
            assert ".py" not in text


def code_of(call: Any, request: Any, token: str | None) -> grpc.StatusCode:
    metadata = [("authorization", f"Bearer {token}")] if token else None
    try:
        call(request, metadata=metadata, timeout=20)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_tokens_open_what_they_are_for(site: Site) -> None:
    ok, denied = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
    with site.channel() as channel:
        inspector = inspector_pb2_grpc.InspectorStub(channel)
        calls: dict[str, tuple[Any, Any]] = {
            "device": (
                device_pb2_grpc.DeviceStub(channel).GetModel,
                device_pb2.GetModelRequest(),
            ),
            "inspector": (inspector.GetState, inspector_pb2.GetStateRequest()),
            "control": (inspector.Resume, inspector_pb2.ResumeRequest()),
        }
        for opened, (call, request) in calls.items():
            for shown in calls:
                both = (opened, shown) == ("inspector", "control")
                expected = ok if opened == shown or both else denied
                assert code_of(call, request, SECRETS[shown]) is expected
            for wrong in (SECRETS["wrong"], None):
                unknown = grpc.StatusCode.UNAUTHENTICATED
                assert code_of(call, request, wrong) is unknown


def test_a_key_is_replaced_without_a_restart(site: Site) -> None:
    key = site.directory / "key"
    key.write_text(f"{SECRETS['key']}\n{SECRETS['next-key']}\n")
    for name in ("key", "next-key"):
        assert site.ask("GET", "/version", SECRETS[name])[0] == 200
    key.write_text(SECRETS["next-key"])
    assert site.ask("GET", "/version", SECRETS["key"])[0] == 401
    key.write_text(SECRETS["key"])


def test_no_secret_is_printed(site: Site) -> None:
    """The last one: all of the above has been said by now."""
    body = {"prompt": "hello", "max_tokens": 2}
    assert site.ask("POST", "/v1/completions", SECRETS["key"], body)[0] == 200
    site.ask("POST", "/v1/completions", SECRETS["wrong"], body)
    wait_until(lambda: site.serving.says("HTTP/1.1. 401"), "an access log")
    printed = "\n".join(site.serving.lines)
    assert "trace" in printed.lower()
    for name, secret in SECRETS.items():
        assert secret not in printed, name
    for file in site.directory.rglob("*.key"):
        middle = file.read_text().splitlines()[3]
        assert middle not in printed

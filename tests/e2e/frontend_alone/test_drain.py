"""The end of a frontend, as each kind of client sees it."""

from __future__ import annotations

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.frontend_alone.test_errors import envelope
from tests.e2e.frontend_alone.test_failures import LONG, last_event
from tests.support.fake_device import FakeDevice
from tests.support.frontend_process import FrontendProcess, wait_for

KEY = "secret"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
GRACE = 6.0
DELAY = 3.0

pytestmark = pytest.mark.timeout(300)


def test_keys_and_drain(tmp_path: Path) -> None:
    """One start for both: the process ends with the test."""
    with (
        FakeDevice() as device,
        FrontendProcess(
            device.address,
            tmp_path / "log",
            *("--api-key", KEY, "other"),
            *("--shutdown-timeout", str(GRACE), "--drain-delay", str(DELAY)),
        ) as frontend,
    ):
        frontend.wait_until_ready()
        check_keys(frontend)
        check_drain(frontend, device)


def check_keys(frontend: FrontendProcess) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
        for path in ("/v1/completions", "/tokenize", "/nope"):
            refused = httpx.post(frontend.url + path, json=body, headers=headers)
            envelope(refused, 401)
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            envelope(httpx.get(frontend.url + path, headers=headers), 401)
    for path in ("/live", "/ready", "/health"):
        assert httpx.get(frontend.url + path).status_code == 200
    for given in (
        {"authorization": f"Bearer {KEY}"},
        {"authorization": "bearer other"},
        {"x-api-key": KEY},
    ):
        url = f"{frontend.url}/v1/completions"
        httpx.post(url, json=body, headers=given).raise_for_status()


class RawClient:
    """A connection whose bytes the test sends, and reads or not."""

    def __init__(self, frontend: FrontendProcess) -> None:
        self._socket = socket.socket()
        # Small segments and a small window, or the kernel would keep megabytes for
        # a client that does not read. Set before connecting, which agrees on them.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        self._socket.settimeout(20)
        self._socket.connect(("127.0.0.1", frontend.port))

    def send_request(self, body: bytes, *, length: int | None = None) -> None:
        """Fewer bytes than `length` are a body that is still under way."""
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read_to_the_end(self) -> bytes:
        pieces = []
        while piece := self._socket.recv(65536):
            pieces.append(piece)
        return b"".join(pieces)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()


def check_drain(frontend: FrontendProcess, device: FakeDevice) -> None:
    """What can finish in time finishes, the rest ends with an error, then it ends."""
    with (
        RawClient(frontend) as unread,
        RawClient(frontend) as uploading,
        RawClient(frontend) as half_a_head,
    ):
        stop_reading(unread, device)
        uploading.send_request(b'{"prompt": "', length=1000)
        half_a_head.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        began = check_readers(frontend, device)
        upload = uploading.read_to_the_end()
        assert frontend.exit_status() == 0
        assert time.monotonic() - began < GRACE + 2
        assert upload.startswith(b"HTTP/1.1 503 ")
        assert b"shutting down" in upload
        assert half_a_head.read_to_the_end() == b""
    assert "Traceback" not in frontend.log


def check_readers(frontend: FrontendProcess, device: FakeDevice) -> float:
    """Those who read get their answers or an error; when the signal was sent."""
    url = f"{frontend.url}/v1/completions"
    device.behaviour.step_seconds = 0.03
    device.seen.submissions.clear()

    def ask(body: dict[str, Any]) -> httpx.Response:
        return httpx.post(url, json=body, headers=AUTHORIZED, timeout=30)

    with (
        httpx.Client(headers=AUTHORIZED, timeout=30) as kept,
        ThreadPoolExecutor() as pool,
    ):
        kept.get(f"{frontend.url}/v1/models").raise_for_status()
        short = pool.submit(ask, {"prompt": "x", "max_tokens": 50})
        endless = pool.submit(ask, {"prompt": "x", "stream": True, **LONG})
        plain = pool.submit(ask, {"prompt": "x", **LONG})
        wait_for(lambda: len(device.seen.submissions) == 3, 20)
        frontend.terminate()
        began = time.monotonic()
        # A connection that was kept brings one more request, and is closed.
        late = kept.post(url, json={"prompt": "x", "max_tokens": 1})
        assert late.status_code == 200
        assert late.headers["connection"] == "close"
        check_health(frontend)
        wait_for(lambda: ask({"prompt": "x", "max_tokens": 1}).status_code == 503)
        assert time.monotonic() - began >= DELAY
        refused = ask({"prompt": "x", "stream": True})
        assert "shutting down" in envelope(refused, 503)["message"]
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        assert short.result().json()["usage"]["completion_tokens"] == 50
        assert last_event(endless.result().text)["error"]["code"] == 503
        assert json.dumps("finish_reason") + ':"' not in endless.result().text
        envelope(plain.result(), 503)
    return began


def stop_reading(client: RawClient, device: FakeDevice) -> None:
    """Ask for more than the kernel and the server keep, and read nothing."""
    flood = {"prompt": "x", "logprobs": 20, "stream": True, **LONG}
    device.seen.submissions.clear()
    client.send_request(json.dumps(flood).encode())
    wait_for(lambda: len(device.seen.submissions) == 1, 20)
    wait_for(lambda: device.live_requests == 0, 60)


def check_health(frontend: FrontendProcess) -> None:
    """Alive, and ready no more."""
    report = httpx.get(f"{frontend.url}/ready")
    assert report.status_code == 503
    assert report.json()["reasons"][0]["reason"] == "draining"
    assert httpx.get(f"{frontend.url}/live").status_code == 200


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with (
        FakeDevice() as device,
        FrontendProcess(device.address, tmp_path / "log") as frontend,
    ):
        frontend.wait_until_ready()
        device.behaviour.step_seconds = 0.1
        with RawClient(frontend) as client:
            client.send_request(json.dumps({"prompt": "x", **LONG}).encode())
            wait_for(lambda: device.live_requests == 1)
            frontend.terminate()
            wait_for(lambda: not frontend.ready())
            began = time.monotonic()
            frontend.terminate()
            assert frontend.exit_status() == 128 + signal.SIGTERM
            assert time.monotonic() - began < 2
        assert "second signal" in frontend.log

"""A device service that dies, hangs, drains and comes back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.frontend_alone.test_errors import envelope
from tests.e2e.frontend_alone.test_failures import LONG, last_event
from tests.support.fake_device import FakeDevice
from tests.support.frontend_process import FrontendProcess, wait_for

NOTICED_SECONDS = 2.0
BACK_SECONDS = 2.0


def kill(device: FakeDevice) -> None:
    device.kill()


def stall(device: FakeDevice) -> None:
    device.behaviour.stalled = True


def revive(device: FakeDevice) -> None:
    if device.behaviour.stalled:
        device.behaviour.stalled = False
    else:
        device.start()


class InBackground:
    """One call on a thread, and its result."""

    def __init__(self, call: Callable[[], httpx.Response]) -> None:
        self._call = call
        self._response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def result(self) -> httpx.Response:
        self._thread.join(15)
        assert self._response is not None
        return self._response

    def _run(self) -> None:
        self._response = self._call()


@pytest.mark.parametrize("take_away", [kill, stall])
def test_loss_and_return(
    http: httpx.Client,
    device: FakeDevice,
    frontend: FrontendProcess,
    take_away: Callable[[FakeDevice], None],
) -> None:
    device.behaviour.step_seconds = 0.05
    body: dict[str, Any] = {"prompt": "x", **LONG}
    streaming = InBackground(
        lambda: httpx.post(
            f"{frontend.url}/v1/completions", json=body | {"stream": True}, timeout=20
        )
    )
    waiting = InBackground(
        lambda: httpx.post(f"{frontend.url}/v1/completions", json=body, timeout=20)
    )
    wait_for(lambda: device.live_requests == 2)
    time.sleep(0.2)

    take_away(device)
    lost_at = time.monotonic()
    wait_for(lambda: not frontend.ready(), NOTICED_SECONDS)
    envelope(waiting.result(), 503)
    stream = streaming.result()
    assert stream.status_code == 200
    assert last_event(stream.text)["error"]["code"] == 503
    assert '"finish_reason":"' not in stream.text
    assert time.monotonic() - lost_at < NOTICED_SECONDS + 1

    report = http.get("/health")
    assert report.status_code == 503
    assert report.json()["reasons"][0]["reason"] == "no_device"
    assert http.get("/live").status_code == 200
    assert http.get("/v1/models").status_code == 200
    for stream_too in (False, True):
        refused = http.post("/v1/completions", json=body | {"stream": stream_too})
        envelope(refused, 503)
        assert int(refused.headers["retry-after"]) >= 1

    revive(device)
    back_at = time.monotonic()
    device.behaviour.step_seconds = 0.001
    wait_for(lambda: try_once(http), BACK_SECONDS)
    assert time.monotonic() - back_at < BACK_SECONDS


def try_once(http: httpx.Client) -> bool:
    body = {"prompt": "x", "max_tokens": 2}
    return http.post("/v1/completions", json=body).status_code == 200


def test_draining_device(
    http: httpx.Client, device: FakeDevice, frontend: FrontendProcess
) -> None:
    """What runs goes on; nothing new is sent; the next instance is used at once."""
    device.behaviour.step_seconds = 0.01
    body = {"prompt": "x", "max_tokens": 60}
    running = InBackground(
        lambda: httpx.post(f"{frontend.url}/v1/completions", json=body, timeout=20)
    )
    wait_for(lambda: device.live_requests == 1)
    device.drain(grace_ms=5000)
    wait_for(lambda: not frontend.ready())
    assert http.get("/ready").json()["reasons"][0]["reason"] == "device_draining"
    envelope(http.post("/v1/completions", json=body), 503)
    assert running.result().json()["usage"]["completion_tokens"] == 60
    before = http.get("/version").json()["device_instance"]
    device.kill()
    device.start()
    wait_for(frontend.ready)
    assert http.get("/version").json()["device_instance"] != before


def test_device_that_is_warming_up(
    http: httpx.Client, device: FakeDevice, frontend: FrontendProcess
) -> None:
    device.behaviour.serving = False
    device.kill()
    device.start()
    wait_for(lambda: reason(http) == "warming_up")
    envelope(http.post("/v1/completions", json={"prompt": "x"}), 503)
    device.behaviour.serving = True
    wait_for(frontend.ready)


def reason(http: httpx.Client) -> str:
    reasons = http.get("/ready").json()["reasons"]
    return str(reasons[0]["reason"]) if reasons else ""


def test_gauges_are_zero_when_nothing_runs(
    http: httpx.Client, device: FakeDevice
) -> None:
    body = {"prompt": "x", "max_tokens": 3}
    http.post("/v1/completions", json=body).raise_for_status()
    wait_for(lambda: running_requests(http) == 0)


def running_requests(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    (line,) = [k for k in lines if k.startswith("vllm:num_requests_running{")]
    return float(line.rpartition(" ")[2])


def test_error_events_are_json(device: FakeDevice, frontend: FrontendProcess) -> None:
    device.behaviour.step_seconds = 0.05
    url = f"{frontend.url}/v1/completions"
    with httpx.stream(
        "POST", url, json={"prompt": "x", "stream": True, **LONG}, timeout=20
    ) as stream:
        lines = stream.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"]
        device.kill()
        rest = [line for line in lines if line]
    device.start()
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == 503

"""The process itself: its start, what it refuses at start, and its end."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import httpx
import pytest

from tests.e2e.frontend_alone.test_errors import envelope
from tests.e2e.frontend_alone.test_failures import LONG, last_event
from tests.support.fake_device import FakeDevice, model
from tests.support.frontend_process import (
    FrontendProcess,
    free_port,
    run_frontend,
    wait_for,
)

KEY = "secret"
NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--device-service HOST:PORT is required"),
        (("--device-service", "nonsense"), "'nonsense' is not HOST:PORT"),
        (("--device-service", "host:99999"), "is not HOST:PORT"),
        (("--device-service", "a:1,b"), "'b' is not HOST:PORT"),
        (("--device-service", "a:1,a:1"), "names a:1 twice"),
        (("--device-service", NOBODY, "--wrong"), "unknown option --wrong"),
        (("--device-service", NOBODY, "--port", "x"), "--port"),
        (("--device-service", NOBODY, "--model", "m"), "tt-device-service"),
        (("--device-service", NOBODY, "--reasoning_parser=x"), "tt-device-service"),
        (("--device-service", NOBODY, "--tokens-only"), "not for a frontend"),
        (("--device-service", NOBODY, "model"), "comes from the device service"),
        (("--device-service", NOBODY, "--fd", "77"), "--fd 77 is not a socket"),
        (("--device-service", NOBODY, "--ssl-certfile", "no.pem"), "TLS"),
        (
            ("--device-service", NOBODY, "--port", "0", "--device-timeout", "0.5"),
            "not ready after 0.5 s: cannot connect",
        ),
    ],
)
def test_bad_starts_say_one_line(options: tuple[str, ...], said: str) -> None:
    status, errors = run_frontend(*options)
    *noise, line = errors.splitlines()
    assert status == 2
    assert line.startswith("tt-frontend: ")
    assert said in line
    assert not any("Traceback" in other for other in noise)


def test_port_that_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        status, errors = run_frontend("--device-service", NOBODY, "--port", port)
    assert status == 2
    assert errors == (
        f"tt-frontend: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )


def test_device_of_another_version() -> None:
    with FakeDevice(model(vllm_version="0.1.0")) as device:
        port = str(free_port())
        status, errors = run_frontend(
            "--device-service", device.address, "--port", port
        )
    assert status == 2
    assert "runs vLLM 0.1.0" in errors.splitlines()[-1]


def test_help_teaches() -> None:
    status, _ = run_frontend("--help")
    assert status == 0


def test_port_answers_from_the_start(tmp_path: Path) -> None:
    with FrontendProcess(NOBODY, tmp_path / "log") as frontend:
        wait_for(lambda: "listening on" in frontend.log, 20)
        assert httpx.get(f"{frontend.url}/live").status_code == 200
        for path in ("/ready", "/health"):
            answer = httpx.get(frontend.url + path)
            envelope_of_start(answer)
            assert answer.json()["reasons"][0]["reason"] == "starting"
        envelope_of_start(httpx.post(f"{frontend.url}/v1/completions", json={}))
        frontend.terminate()
        assert frontend.exit_status() == 0


def envelope_of_start(response: httpx.Response) -> None:
    assert response.status_code == 503
    assert response.json()["error"]["code"] == 503
    assert "device service" in response.json()["error"]["message"]


@pytest.mark.timeout(300)
def test_keys_and_drain(tmp_path: Path) -> None:
    """One start for both: the process ends with the test."""
    with (
        FakeDevice() as device,
        FrontendProcess(
            device.address,
            tmp_path / "log",
            *("--api-key", KEY, "other", "--shutdown-timeout", "3"),
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


def check_drain(frontend: FrontendProcess, device: FakeDevice) -> None:
    """What can finish in time finishes, the rest ends with an error, then it ends."""
    device.behaviour.step_seconds = 0.02
    answers: dict[str, httpx.Response] = {}

    def ask(name: str, body: dict[str, object]) -> None:
        url = f"{frontend.url}/v1/completions"
        headers = {"authorization": f"Bearer {KEY}"}
        answers[name] = httpx.post(url, json=body, headers=headers, timeout=30)

    threads = [
        threading.Thread(target=ask, args=(name, body))
        for name, body in (
            ("short", {"prompt": "x", "max_tokens": 50}),
            ("long", {"prompt": "x", "stream": True, **LONG}),
        )
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: device.live_requests == 2)
    frontend.terminate()
    wait_for(lambda: not frontend.ready(), 2)
    report = httpx.get(f"{frontend.url}/ready").json()
    assert report["reasons"][0]["reason"] == "draining"
    assert httpx.get(f"{frontend.url}/live").status_code == 200
    for thread in threads:
        thread.join(20)
    assert frontend.exit_status() == 0
    assert answers["short"].json()["usage"]["completion_tokens"] == 50
    assert last_event(answers["long"].text)["error"]["code"] == 503
    assert json.dumps("finish_reason") + ':"' not in answers["long"].text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_model_ends_the_process(tmp_path: Path) -> None:
    with (
        FakeDevice() as device,
        FrontendProcess(device.address, tmp_path / "log") as frontend,
    ):
        frontend.wait_until_ready()
        device.kill()
        device.model = model(fingerprint="another")
        device.start()
        assert frontend.exit_status() == 3
        assert "serves another model now" in frontend.log

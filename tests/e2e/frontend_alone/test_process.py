"""The process itself: its start, what it refuses at start, and its end."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.support.fake_device import FakeDevice, model
from tests.support.frontend_process import (
    FrontendProcess,
    free_port,
    run_frontend,
    wait_for,
)

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


@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
def test_port_that_is_taken(flag: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        options = ("--device-service", NOBODY, "--port", "0", flag, port)
        status, errors = run_frontend(*options)
    assert status == 2
    assert errors.splitlines()[-1] == (
        f"tt-frontend: --host 127.0.0.1 {flag} {port}: cannot listen: "
        "Address already in use"
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
    with FrontendProcess(NOBODY, tmp_path / "log", fork=False) as frontend:
        wait_for(lambda: "listening on" in frontend.log, 20)
        assert httpx.get(f"{frontend.url}/live").status_code == 200
        for path in ("/ready", "/health"):
            answer = httpx.get(frontend.url + path)
            envelope_of_start(answer)
            assert answer.json()["reasons"][0]["reason"] == "starting"
        envelope_of_start(httpx.post(f"{frontend.url}/v1/completions", json={}))
        frontend.terminate()
        assert frontend.exit_status() == 0
        assert "Traceback" not in frontend.log


def test_a_signal_before_the_port_is_bound(tmp_path: Path) -> None:
    with FrontendProcess(NOBODY, tmp_path / "log", fork=False) as frontend:
        wait_for(lambda: catches(frontend, signal.SIGTERM), 60)
        frontend.terminate()
        assert frontend.exit_status() == 0
        assert frontend.log == ""


def catches(frontend: FrontendProcess, number: signal.Signals) -> bool:
    """Whether the process handles a signal by now."""
    status = Path(f"/proc/{frontend.process.pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def envelope_of_start(response: httpx.Response) -> None:
    assert response.status_code == 503
    assert response.json()["error"]["code"] == 503
    assert "device service" in response.json()["error"]["message"]


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

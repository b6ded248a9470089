"""`tt-serve` as a command, over real services on the sim mesh."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TT_SERVE = [sys.executable, "-m", "ttserve.launcher"]
# Imports take seconds, and many more where other tests run beside this one.
DEADLINE = 240.0

pytestmark = pytest.mark.timeout(600)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def free_ports() -> int:
    """The first of two free ports beside each other."""
    while True:
        port = free_port()
        with (
            contextlib.suppress(OSError, OverflowError),
            socket.create_server(("127.0.0.1", port + 1)),
        ):
            return port


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def children(pid: int) -> dict[str, int]:
    """The pids of a launcher's frontends by name, of its device services by address."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError):
            command = Path(f"/proc/{child}/cmdline").read_text()
            name = re.search(r"frontend\d+(?=\0)|(?<=--listen\0)[^\0]+", command)
            if name:
                found[name[0]] = int(child)
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class Serving:
    """A running tt-serve and what it prints."""

    def __init__(self, *flags: str, grpc_port: int) -> None:
        self.port = free_port()
        ports = {
            "--port": self.port,
            "--grpc-port": grpc_port,
            "--metrics-port": free_port(),
        }
        self.process = subprocess.Popen(
            [*TT_SERVE, *flags, *(str(x) for pair in ports.items() for x in pair)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.lines.extend(line.rstrip("\n") for line in lines)

    def says(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.lines)

    def wait_for(self, pattern: str) -> None:
        wait_until(
            lambda: self.says(pattern) or self.process.poll() is not None, pattern
        )
        assert self.says(pattern), "\n".join(self.lines)

    def answers(self) -> bool:
        """Whether a chat gets an answer now."""
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return bool(json.load(response)["choices"])
        except OSError:
            return False

    def devices(self) -> dict[str, str]:
        """The state of each device service, as a frontend sees it."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/health", timeout=30
            ) as response:
                devices = json.load(response)["devices"]
        except OSError:
            return {}
        return {device["address"]: device["state"] for device in devices}

    def exit_code(self) -> int:
        """Wait for the end; all lines are in `lines` then."""
        code = self.process.wait(DEADLINE)
        self._reader.join()
        return code

    def end(self) -> None:
        for signum in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            self.process.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        self._reader.join()


Start = Callable[..., Serving]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a tt-serve that ends with the test."""
    started: list[Serving] = []

    def one(*flags: str, grpc_port: int | None = None) -> Serving:
        started.append(Serving(*flags, grpc_port=grpc_port or free_port()))
        return started[-1]

    yield one
    for serving in started:
        serving.end()


@pytest.mark.feature(95, 96)
def test_the_parts_come_back_and_stop_in_order(start: Start) -> None:
    port = free_ports()
    first, second = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    flags = ("--mesh", "sim", "--frontends", "2", "--data-parallel-size", "2")
    serving = start(*flags, grpc_port=port)
    serving.wait_for(r"tt-serve *\| ready in [\d.]+ s")
    assert serving.says(rf"HTTP +http://127\.0\.0\.1:{serving.port}$")
    assert serving.says(rf"gRPC +{first} {second}$")
    both = {first: "ready", second: "ready"}
    wait_until(lambda: serving.devices() == both, "both serve")
    before = children(serving.process.pid)
    assert before.keys() == {first, second, "frontend0", "frontend1"}

    os.kill(before[second], signal.SIGKILL)
    assert all(serving.answers() for _ in range(8)), "the other one serves"
    os.kill(before["frontend0"], signal.SIGKILL)

    def replaced() -> bool:
        now = children(serving.process.pid)
        return now.keys() == before.keys() and all(
            now[name] != before[name] for name in (second, "frontend0")
        )

    wait_until(replaced, "the dead are started again")
    wait_until(lambda: serving.devices() == both, "both serve again")
    assert serving.answers()
    last = children(serving.process.pid)
    assert [last[it] for it in (first, "frontend1")] == [
        before[it] for it in (first, "frontend1")
    ]

    serving.process.send_signal(signal.SIGINT)
    assert serving.exit_code() == 0
    assert not any(is_alive(pid) for pid in last.values())


def test_nothing_outlives_a_launcher_that_is_killed(start: Start) -> None:
    serving = start("--mesh", "sim")
    serving.wait_for(r"device *\| .*serving, after")
    pids = children(serving.process.pid).values()
    assert len(pids) == 2
    serving.process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "all have ended")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--no-such-flag 1", "unknown flag --no-such-flag"),
        ("--port eighty", "'eighty' is not a whole number"),
        ("--frontends 0", "'0' is not a whole number from 1"),
        ("--device-service far:1", "tt-serve sets --device-service itself"),
    ],
)
def test_a_wrong_command_line_is_one_line(flags: str, message: str) -> None:
    tried = subprocess.run(
        [*TT_SERVE, *flags.split()], capture_output=True, text=True, timeout=DEADLINE
    )
    assert tried.returncode == 2
    assert tried.stdout == ""
    (line,) = tried.stderr.splitlines()
    assert line.startswith("tt-serve: error: ")
    assert message in line


@pytest.mark.parametrize(
    "flag", ["--port", "--grpc-port", "--metrics-port", "--device-metrics-port"]
)
def test_a_taken_port_is_one_line(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--port": "0", "--grpc-port": str(free_port())}
        ports |= {"--metrics-port": str(free_port()), flag: str(port)}
        tried = subprocess.run(
            [*TT_SERVE, "--mesh", "sim", *(x for pair in ports.items() for x in pair)],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
    assert tried.returncode == 2
    (line,) = tried.stderr.splitlines()
    assert f"port {port} on 127.0.0.1 is taken; choose another with {flag}" in line


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("/no/such/model", "/no/such/model"),
        ("--mesh sim --tensor-parallel-size 2 -dp 2", "tensor-parallel-size"),
        ("--mesh sim --lora-modules a=b", "LoRA"),
    ],
)
def test_what_a_part_refuses_ends_all_with_its_line(
    start: Start, flags: str, reason: str
) -> None:
    refused = start(*flags.split())
    assert refused.exit_code() == 2
    assert refused.says(rf"(device|frontend0|plan) *\| .*{reason}"), "\n".join(
        refused.lines
    )
    assert refused.says("giving up$")
    assert not refused.says("Traceback")

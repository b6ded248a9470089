"""A frontend as a process of its own, for tests that talk to it over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from tests.support.prepared import Process, start

START_SECONDS = 240.0  # imports alone take 7 s, and many more on a busy machine
STOP_SECONDS = 20.0


class FrontendProcess:
    """Starts with the context and is killed at its end if it still runs.

    `program` is what this interpreter is told to run; with `fork`, the plain command
    may be a fork of a prepared process.
    """

    def __init__(
        self,
        device: str,
        log: Path,
        *options: str,
        program: Sequence[str] = ("-m", "frontend"),
        fork: bool = True,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._fork = fork
        self._words = [
            *program,
            *("--device-service", device, "--port", str(self.port)),
            *options,
        ]
        self._process: Process | None = None

    def __enter__(self) -> FrontendProcess:
        with self._log.open("wb") as log:
            file = log.fileno()
            self._process = start(
                self._words, stdout=file, stderr=file, fork=self._fork
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        """Whether GET /ready says yes."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def wait_until_ready(self) -> None:
        """Until it serves; fails with its log if it ends before."""
        wait_for(lambda: self.ready() or self._has_ended(), START_SECONDS)
        assert not self._has_ended(), self.log

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def exit_status(self) -> int:
        """Wait for its end."""
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_SECONDS)

    def _has_ended(self) -> bool:
        return self.process.poll() is not None


def run_frontend(*options: str, seconds: float = 60.0) -> tuple[int, str]:
    """Run one that is expected to end by itself; status and standard error."""
    with tempfile.TemporaryFile() as errors, open(os.devnull, "wb") as nowhere:
        words = ["-m", "frontend", *options]
        process = start(words, stdout=nowhere.fileno(), stderr=errors.fileno())
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        errors.seek(0)
        return status, errors.read().decode()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Poll until the condition holds; fails when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)

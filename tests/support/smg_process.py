"""The SMG gateway as a process, in front of device services."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx

from tests.support.frontend_process import free_port, wait_for


class SmgProcess:
    """Starts with the context and is killed at its end."""

    def __init__(self, devices: Sequence[str], log: Path) -> None:
        self.port, metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        self._workers = len(devices)
        self._log = log
        self._command = [
            *(sys.executable, "-m", "smg", "launch"),
            *("--worker-urls", *(f"grpc://{device}" for device in devices)),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--prometheus-host", "127.0.0.1"),
            *("--prometheus-port", str(metrics_port)),
            *("--policy", "cache_aware", "--load-monitor-interval", "1"),
            *("--health-check-interval-secs", "1", "--health-failure-threshold", "1"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SmgProcess:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_for(lambda: self.healthy_workers() == self._workers, 120)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)

    def healthy_workers(self) -> int:
        """What its readiness says; 0 while it does not answer."""
        try:
            answer = httpx.get(f"{self.url}/readiness", timeout=5)
        except httpx.TransportError:
            return 0
        return int(answer.json().get("healthy_workers", 0))

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = httpx.get(self.metrics_url, timeout=5).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

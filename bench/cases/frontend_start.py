"""How fast a frontend is there, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from bench.progress import say
from bench.registry import benchmark
from bench.results import Result, result
from bench.services import (
    HOST,
    device_service,
    free_ports,
    http_is_ready,
    program,
    running,
)
from bench.systems import sim_flags

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Start:
    seconds: float
    cpu_seconds: float
    rss: float
    uss: float


@benchmark(
    "frontend-start",
    shows="time from start to ready and memory then, with the device service up",
)
def frontend_start(rounds: int) -> Iterator[Result]:
    """Starts one after another; the first only fills the file cache."""
    with device_service(*sim_flags(32, step_ms=0)) as address:
        starts = []
        for number in range(rounds + 1):
            start = _start(address)
            say(f"  start {number}/{rounds}: {start.seconds:.1f} s")
            starts += [start] if number else []
    yield result("frontend-start.ready", [s.seconds for s in starts], "s")
    yield result("frontend-start.cpu", [s.cpu_seconds for s in starts], "s")
    yield result("frontend-start.rss", [s.rss for s in starts], "MiB")
    yield result("frontend-start.uss", [s.uss for s in starts], "MiB")


def _start(address: str) -> _Start:
    port, metrics_port = free_ports(2)
    command = [
        *program("tt-frontend", "frontend"),
        *("--device-service", address, "--host", HOST, "--port", str(port)),
        *("--metrics-port", str(metrics_port)),
    ]
    with running("tt-frontend", command) as process:
        seconds = process.wait_for(lambda: http_is_ready(port))
        family = psutil.Process(process.pid)
        members = [family, *family.children(recursive=True)]
        memory = [member.memory_full_info() for member in members]
        times = [member.cpu_times() for member in members]
        return _Start(
            seconds,
            sum(t.user + t.system for t in times),
            sum(m.rss for m in memory) / MIB,
            sum(m.uss for m in memory) / MIB,
        )

"""Sampling on the host, beside vLLM's own sampler on the same logits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bench.registry import benchmark
from bench.results import Result, result
from bench.worker import Worker


@benchmark(
    "host-sampling",
    shows="a step's sampling at 32 and 128 rows, ours and vLLM's",
)
def host_sampling(_: int) -> Iterator[Result]:
    """It takes its own rounds: seven, in turns."""
    command = [sys.executable, "-m", "bench.workers.host_sampling"]
    with Worker("host sampling", command) as worker:
        figures = worker.ask({})["figures"]
    for figure in figures:
        name = figure["name"].removeprefix("host_sampling.")
        unit = "x" if name.endswith(".ratio") else figure["unit"]
        yield result(f"host-sampling.{name}", figure["value"], unit)

"""Whether tokens are the same in every way of running that there is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

from bench.progress import say
from bench.registry import CannotRun, benchmark
from bench.results import Result, result
from bench.worker import ROOT

MATRIX = "tests/equality/test_matrix.py"


@benchmark(
    "equality",
    shows="share of all ways to run a model in which tokens equal transformers'",
    target="all",
)
def equality(_: int) -> Iterator[Result]:
    """`make test` takes every two ways together; here are all combinations."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", MATRIX]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    counts = {
        kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed)", done.stdout)
    }
    ran = sum(counts.values())
    if not ran:
        raise CannotRun(
            f"{MATRIX} did not run: {done.stdout[-300:]}{done.stderr[-300:]}"
        )
    for line in re.findall(r"^FAILED .*$", done.stdout, flags=re.M):
        say(f"  {line}")
    share = counts.get("passed", 0) / ran
    yield result("equality.ways", float(ran), "tests")
    yield result("equality.equal", share, "of them", ">= 1")

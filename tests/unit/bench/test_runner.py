"""Which benchmarks there are, how they are chosen and what becomes of failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.__main__ import main, run_all
from bench.registry import Benchmark, CannotRun, all_benchmarks, chosen
from bench.results import Result, result

NAMES = {
    "default-model",
    "equality",
    "frontend-start",
    "host-sampling",
    "peer",
    "split",
    "step-loop",
    "step-rate",
    "watchers",
}


def test_every_benchmark_is_found_and_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {b.name for b in all_benchmarks()} == NAMES
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in NAMES)


def test_a_name_or_its_beginning_chooses() -> None:
    benchmarks = all_benchmarks()
    assert {b.name for b in chosen(benchmarks, ["step"])} == {"step-loop", "step-rate"}
    assert {b.name for b in chosen(benchmarks, ["peer", "split"])} == {"peer", "split"}
    assert chosen(benchmarks, []) == benchmarks


def test_a_name_that_fits_none_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nonsense"]) == 2
    assert "no benchmark is called nonsense" in capsys.readouterr().err


def _works(rounds: int) -> Iterator[Result]:
    yield result("works.rounds", rounds, "rounds", "< 1")


def _lacks(_: int) -> Iterator[Result]:
    yield result("lacks.half", 1.0, "s")
    raise CannotRun("no peer here")


def _breaks(_: int) -> Iterator[Result]:
    raise ValueError("a defect")
    yield


def test_one_that_cannot_run_takes_nothing_from_the_others() -> None:
    functions = {"lacks": _lacks, "breaks": _breaks, "works": _works}
    suite = [Benchmark(n, "", "", function) for n, function in functions.items()]
    results, could_not_run = run_all(suite, rounds=3)
    assert [r.name for r in results] == ["lacks.half", "works.rounds"]
    assert could_not_run == ["lacks: no peer here", "breaks: ValueError: a defect"]
    # A missed target is no failure to run.
    assert results[1].ok is False


def test_list_writes_no_file(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    assert main(["--list", "--output", str(output)]) == 0
    assert not output.exists()

"""Benchmarks are plain functions in the modules of `bench.cases`, so marked."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import bench.cases
from bench.results import Result

Function = Callable[[int], Iterator[Result]]
"""Gets the most rounds that it may take; yields its results one by one."""


class CannotRun(Exception):
    """A benchmark lacks something on this machine; one line says what."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A function and what `--list` says of it. What it starts, it also ends."""

    name: str
    shows: str
    target: str
    run: Function


_found: dict[str, Benchmark] = {}


def benchmark(
    name: str, *, shows: str, target: str = "report only"
) -> Callable[[Function], Function]:
    """Mark a function as a benchmark. Results are named after it: `name.figure`."""

    def mark(function: Function) -> Function:
        if name in _found:
            raise ValueError(f"two benchmarks are called {name}")
        _found[name] = Benchmark(name, shows, target, function)
        return function

    return mark


def all_benchmarks() -> list[Benchmark]:
    """Every benchmark, sorted by name of module, then in the module's order."""
    for module in sorted(m.name for m in pkgutil.iter_modules(bench.cases.__path__)):
        importlib.import_module(f"bench.cases.{module}")
    return list(_found.values())


def chosen(benchmarks: Sequence[Benchmark], wanted: Sequence[str]) -> list[Benchmark]:
    """Those whose name begins with one of `wanted`; all without one.

    Raises LookupError for a name that fits none.
    """
    if not wanted:
        return list(benchmarks)
    for prefix in wanted:
        if not any(b.name.startswith(prefix) for b in benchmarks):
            raise LookupError(f"no benchmark is called {prefix}")
    return [b for b in benchmarks if any(b.name.startswith(p) for p in wanted)]

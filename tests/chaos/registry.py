"""Cases are plain functions in the modules of `tests.chaos.cases`, so marked."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tests.chaos.cases
from bench.results import Result


@dataclass(frozen=True, slots=True)
class Setting:
    """What a case gets: a directory of its own for logs, and the run's seed."""

    directory: Path
    seed: int


Function = Callable[[Setting], Iterator[Result]]
"""Yields its figures one by one. What it starts, it also ends."""


@dataclass(frozen=True, slots=True)
class Case:
    """A function and what `--list` says of it."""

    name: str
    shows: str
    run: Function


_found: dict[str, Case] = {}


def case(name: str, *, shows: str) -> Callable[[Function], Function]:
    """Mark a function as a case. Its figures are named after it: `name.figure`."""

    def mark(function: Function) -> Function:
        if name in _found:
            raise ValueError(f"two cases are called {name}")
        _found[name] = Case(name, shows, function)
        return function

    return mark


def all_cases() -> list[Case]:
    """Every case, sorted by name of module, then in the module's order."""
    for module in sorted(
        m.name for m in pkgutil.iter_modules(tests.chaos.cases.__path__)
    ):
        importlib.import_module(f"tests.chaos.cases.{module}")
    return list(_found.values())


def chosen(cases: Sequence[Case], wanted: Sequence[str]) -> list[Case]:
    """Those whose name begins with one of `wanted`; all without one.

    Raises LookupError for a name that fits none.
    """
    for prefix in wanted:
        if not any(c.name.startswith(prefix) for c in cases):
            raise LookupError(f"no case is called {prefix}")
    return [c for c in cases if not wanted or any(c.name.startswith(p) for p in wanted)]

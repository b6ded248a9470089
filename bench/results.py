"""Figures, and the two forms in which they are handed over: a table and JSON."""

from __future__ import annotations

import json
import operator
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measure import spread

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}
HEADINGS = ("name", "value", "unit", "target", "ok", "spread")


@dataclass(frozen=True, slots=True)
class Result:
    """One figure.

    `target` is a comparison such as ">= 0.75", None for a figure that is only
    reported; `ok` whether it is met. `spread` is that of the rounds whose median
    the value is: (largest - smallest) / median, None for a single measurement.
    """

    name: str
    value: float
    unit: str
    target: str | None = None
    ok: bool | None = None
    spread: float | None = None


def result(
    name: str, values: float | Sequence[float], unit: str, target: str | None = None
) -> Result:
    """The median of the rounds, judged by the target if there is one."""
    rounds = [values] if isinstance(values, int | float) else list(values)
    value = statistics.median(rounds)
    ok = None if target is None else meets(value, target)
    return Result(name, _rounded(value), unit, target, ok, _share(spread(rounds)))


def meets(value: float, target: str) -> bool:
    """Whether a value fulfils a comparison such as "< 5"."""
    sign, _, bound = target.partition(" ")
    return bool(COMPARISONS[sign](value, float(bound)))


def table(results: Sequence[Result]) -> str:
    """The results under headings, in columns."""
    rows = [HEADINGS, *(_cells(r) for r in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    return "\n".join(_line(row, widths) for row in rows)


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write a list of objects with the fields of `Result`."""
    text = json.dumps([asdict(r) for r in results], indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def _cells(r: Result) -> tuple[str, ...]:
    ok = {None: "", True: "yes", False: "NO"}[r.ok]
    share = "" if r.spread is None else f"{r.spread:.0%}"
    return (r.name, f"{r.value:,.4g}", r.unit, r.target or "", ok, share)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, value, *rest = (
        cell.rjust(width) if column in (1, 5) else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join((name, value, *rest)).rstrip()


def _rounded(value: float) -> float:
    """Five digits: more would claim what no run repeats."""
    return float(f"{value:.5g}")


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

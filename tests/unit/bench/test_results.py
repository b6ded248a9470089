"""Figures become a table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.results import meets, result, table, write_json


def test_a_result_is_the_median_of_its_rounds() -> None:
    found = result("a.rate", [3.0, 1.0, 2.0], "tokens/s", ">= 1.5")
    assert (found.value, found.ok, found.spread) == (2.0, True, 1.0)


def test_a_single_measurement_has_no_spread_and_no_verdict() -> None:
    found = result("a.rate", 2.0, "tokens/s")
    assert (found.spread, found.ok, found.target) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "target", "ok"),
    [(0.75, ">= 0.75", True), (5.0, "< 5", False), (5.0, "<= 5", True)],
)
def test_targets_are_comparisons(value: float, target: str, *, ok: bool) -> None:
    assert meets(value, target) is ok


def test_the_table_has_a_line_for_every_result() -> None:
    lines = table(
        [
            result("long-name.rate", [1234.5, 1200.0, 1300.0], "tokens/s", ">= 2000"),
            result("b", 1.0, "s"),
        ]
    ).splitlines()
    assert lines[0].split() == ["name", "value", "unit", "target", "ok", "spread"]
    assert lines[1].split() == [
        *("long-name.rate", "1,234", "tokens/s", ">=", "2000", "NO", "8%")
    ]
    assert lines[2].split() == ["b", "1", "s"]


def test_json_is_a_list_of_objects(tmp_path: Path) -> None:
    write_json([result("a", [1.0, 2.0, 3.0], "s", "< 5")], tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == [
        {
            "name": "a",
            "value": 2.0,
            "unit": "s",
            "target": "< 5",
            "ok": True,
            "spread": 1.0,
        }
    ]

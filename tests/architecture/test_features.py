"""docs/FEATURES.md and docs/EDGES.md are complete, true and up to date."""

from __future__ import annotations

from pathlib import Path

from tools.features_doc import EDGES, FEATURES, problems

ROOT = Path(__file__).resolve().parents[2]


def test_the_documents_say_what_the_tests_show() -> None:
    assert problems(ROOT) == []


def test_no_row_is_missing() -> None:
    features = [row.number for row in FEATURES.rows(ROOT)]
    assert features == [str(number) for number in range(1, 158)]
    edges = [row.number for row in EDGES.rows(ROOT)]
    added_later = {"42b", "57b"}
    assert set(edges) == {str(number) for number in range(1, 68)} | added_later
    assert len(edges) == len(set(edges))

"""The shapes that decodes on the cpu mesh run at."""

from __future__ import annotations

import logging

import pytest

from device_service.models.decode_shapes import DecodeShapes


@pytest.fixture
def shapes() -> DecodeShapes:
    shapes = DecodeShapes()
    shapes.capture([1, 2, 4], 10)
    return shapes


@pytest.mark.feature(42)
@pytest.mark.parametrize(
    ("need", "columns"), [(1, 1), (3, 3), (5, 6), (7, 8), (9, 10), (10, 10)]
)
def test_a_replay_runs_at_a_width_that_was_captured(
    shapes: DecodeShapes, need: int, columns: int
) -> None:
    assert [shapes.columns(rows, need, 10, replay=True) for rows in (1, 2, 4)] == [
        columns
    ] * 3
    assert shapes.unwarmed == 0


def test_without_traces_a_decode_is_as_wide_as_it_must_be(
    shapes: DecodeShapes,
) -> None:
    assert shapes.columns(3, 7, 10, replay=False) == 7
    assert shapes.unwarmed == 0


@pytest.mark.feature(42)
def test_what_was_not_warmed_up_is_counted_and_logged_once(
    shapes: DecodeShapes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert shapes.columns(8, 5, 10, replay=True) == 6
        shapes.columns(8, 1, 10, replay=True)
    assert shapes.unwarmed == 2
    assert [record.getMessage() for record in caplog.records] == [
        "a decode of 8 rows by 6 blocks was not warmed up; 1 such shapes so far",
        "a decode of 8 rows by 1 blocks was not warmed up; 2 such shapes so far",
    ]

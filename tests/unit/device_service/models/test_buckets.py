"""Bucket sizes."""

from __future__ import annotations

import pytest

from device_service.models.buckets import (
    half_steps,
    powers_of_two,
    smallest_covering,
)


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(1, [1]), (2, [1, 2]), (32, [1, 2, 4, 8, 16, 32]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_powers_of_two(limit: int, sizes: list[int]) -> None:
    assert powers_of_two(limit) == sizes


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(1, [1]), (5, [1, 2, 3, 4, 5]), (16, [1, 2, 3, 4, 6, 8, 12, 16])],
)
def test_half_steps(limit: int, sizes: list[int]) -> None:
    assert half_steps(limit) == sizes


def test_smallest_covering() -> None:
    assert [smallest_covering([1, 4, 6], need) for need in (1, 2, 4, 5)] == [1, 4, 4, 6]
    with pytest.raises(ValueError, match="largest"):
        smallest_covering([1, 4, 6], 7)

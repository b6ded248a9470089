"""Search for an input that gets an answer that should not be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
from hypothesis import strategies as st

from bench.progress import say
from bench.results import Result, result
from tests.chaos.streams import End, all_right
from tests.chaos.system import System

EXAMPLES = 400


class Found(Exception):
    """An answer that should not be."""


def search(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], None], seed: int
) -> int:
    """Try so many examples; 1 and the smallest one is printed if `check` raises."""
    searching = hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )(hypothesis.seed(seed)(hypothesis.given(strategy)(check)))
    try:
        searching()
    except Found as found:
        say(f"  found: {found}")
        return 1
    return 0


def still_right(name: str, system: System) -> Iterator[Result]:
    """Ordinary requests get ordinary answers."""
    after = asyncio.run(all_right(system.ports, 16))
    wrong = sum(each.end is not End.RIGHT for each in after.ends)
    yield result(f"{name}.not_right_after", wrong, "requests", "<= 0")

"""When tokens arrived, and what that says. No engine is imported here."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Arrival = tuple[float, int]
"""Seconds since the batch was submitted, and how many tokens came then."""

Prompt = list[int]

PROMPT_IDS = (1000, 9000)
"""Plain tokens in every vocabulary that is measured but the simulated one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that were submitted together: the arrivals of each, in order."""

    streams: tuple[tuple[Arrival, ...], ...]

    @classmethod
    def of(cls, streams: Sequence[Sequence[Sequence[float]]]) -> Batch:
        """From lists, as a worker sends them."""
        return cls(tuple(tuple((t, int(n)) for t, n in stream) for stream in streams))

    @property
    def tokens(self) -> int:
        """Tokens of all requests."""
        return sum(count for stream in self.streams for _, count in stream)

    def decode_rate(self) -> float:
        """Tokens a second, all requests together, while every one of them decodes.

            first token of the last to start        last token of the first to end
            |<------------------- counted: (begin, end] ------------------->|

        So neither prompts nor stragglers count.
        """
        begin = max(stream[0][0] for stream in self.streams)
        end = min(stream[-1][0] for stream in self.streams)
        if end <= begin:
            raise ValueError("no moment at which all requests decoded")
        tokens = sum(n for s in self.streams for t, n in s if begin < t <= end)
        return tokens / (end - begin)

    def whole_rate(self) -> float:
        """Tokens a second from submission to the last token, prompts included."""
        return self.tokens / max(stream[-1][0] for stream in self.streams)

    def first_token_ms(self) -> float:
        """Median time to a request's first token."""
        return statistics.median(stream[0][0] for stream in self.streams) * 1e3

    def gaps_ms(self) -> list[float]:
        """Times between a request's tokens; those that come together have none."""
        gaps: list[float] = []
        for stream in self.streams:
            for (before, _), (now, count) in pairwise(stream):
                gaps += [(now - before) * 1e3, *[0.0] * (count - 1)]
        return gaps


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median over the rounds; None for a single one."""
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    return (max(values) - min(values)) / abs(middle) if middle else None


def prompts(
    count: int, length: int, seed: int, ids: tuple[int, int] = PROMPT_IDS
) -> list[Prompt]:
    """Random prompts. Another seed gives others, so that no prefix is cached."""
    source = random.Random(seed)
    return [[source.randrange(*ids) for _ in range(length)] for _ in range(count)]

"""Rolling restarts under load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench.progress import say
from bench.results import Result, result
from tests.chaos.registry import Setting, case
from tests.chaos.rolling import HOW


@case("rolling", shows="a rolling restart at 50 requests/s fails no request")
def rolling(setting: Setting) -> Iterator[Result]:
    """Three frontends on one socket, three behind a balancer, two device services."""
    for name, roll in HOW.items():
        directory = setting.directory / name
        directory.mkdir()
        outcome = asyncio.run(roll(directory))
        say(f"  {name}: {outcome}")
        yield result(f"rolling.{name}_requests", outcome.requests, "requests")
        yield result(f"rolling.{name}_rate", outcome.rate, "requests/s", ">= 45")
        yield result(f"rolling.{name}_failed", outcome.failed, "requests", "<= 0")

"""Starts supervisors, and ends them with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.unit.ttserve.launcher.stand_ins import QUICK, Launched


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Start a supervisor over the given children; ended with the test."""
    launched: list[Launched] = []

    def start(
        *devices: list[str], frontends: Sequence[list[str]] = (), **timing: float
    ) -> Launched:
        setup = {
            "devices": devices,
            "frontends": frontends,
            "ready": str(tmp_path / "ready"),
            "timing": QUICK | timing,
        }
        launched.append(Launched(setup))
        return launched[-1]

    yield start
    for one in launched:
        one.end()

"""Rigs over the sim mesh, one per shape of engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.rig import Rig
from ttserve.sim_model import sim_model_dir

RigMaker = Callable[..., Rig]


@pytest.fixture
def make_rig() -> Iterator[RigMaker]:
    """Makes rigs over the sim mesh and closes them."""
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(sim_model_dir(), **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()

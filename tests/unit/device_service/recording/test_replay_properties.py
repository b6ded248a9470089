"""Whatever an engine met, its recording replays to the same decisions.

Each recording goes through its file, so nothing that the file lacks can help.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from device_service.codec.recording import encode
from device_service.codec.recording_file import decode
from device_service.recording.recorder import FEWEST_STEPS, Recording
from device_service.replay.run import replay
from tests.support.rig import Rig
from tests.unit.device_service.test_engine_properties import (
    ACTIONS,
    SHAPES,
    Actions,
    Shape,
    Traffic,
    seen,
)
from tests.unit.device_service.test_kv_groups import (
    Tabled,
    describing,
    full,
    named,
    window,
)

pytestmark = pytest.mark.timeout(400)


def recorded(rig: Rig) -> Recording:
    """What an engine's recorder holds, as it comes out of a file."""
    recording = rig.engine.recording("rpc")
    assert recording is not None
    return decode(encode(recording))


def check(recording: Recording) -> None:
    replayed = replay(recording)
    assert replayed.difference is None
    assert len(replayed.steps) == len(recording.steps)


@settings(max_examples=25, deadline=None)
@given(shape=SHAPES, actions=ACTIONS, gaps=st.lists(st.integers(4, 40), max_size=8))
def test_random_traffic_replays(
    shape: Shape, actions: Actions, gaps: list[int]
) -> None:
    with shape.rig(fail_steps=list(itertools.accumulate(gaps))) as rig:
        Traffic(shape, rig, None).run(actions)
        recording = recorded(rig)
        assert len(recording.steps) == len(rig.records)
        for name, happened in seen(rig.records).items():
            if happened:
                event(name)
    check(recording)


@settings(max_examples=25, deadline=None)
@given(shape=SHAPES, actions=ACTIONS, more=ACTIONS)
def test_a_ring_that_wrapped_replays(
    shape: Shape, actions: Actions, more: Actions
) -> None:
    """What is left begins in the middle, with whoever lived then."""
    with shape.rig(step_ring=1) as rig:
        traffic = Traffic(shape, rig, None)
        traffic.run(actions + more)
        recording = recorded(rig)
    event(f"begins with live requests: {bool(recording.picture.sequences)}")
    event(f"begins in the middle: {recording.picture.last_number > 0}")
    assert len(recording.steps) <= 4 * FEWEST_STEPS
    check(recording)


@settings(max_examples=6, deadline=None)
@given(shape=SHAPES, actions=ACTIONS)
def test_two_kv_groups_replay(shape: Shape, actions: Actions) -> None:
    """A layer with a window and one without, whose blocks come from one pool."""
    Tabled.reset()
    roomier = replace(shape, num_blocks=2 * (shape.num_blocks or 50))
    adapter = describing(named(window(), full()), Tabled)
    with roomier.rig(adapter, step_ring=1) as rig:
        Traffic(roomier, rig, None).run(actions)
        recording = recorded(rig)
    check(recording)

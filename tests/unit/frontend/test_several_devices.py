"""The engine client over several device services: placing, moving, failing."""

from __future__ import annotations

import pytest
from vllm.v1.engine import FinishReason

from frontend.engine.requests import Placement
from tests.unit.frontend.test_engine_client import (
    FULL,
    LOST,
    Wired,
    accepted,
    rejected,
    step,
)
from ttserve.errors import Reason, TTServeError
from ttserve.status import to_status
from ttserve.v1 import device_pb2, step_pb2
from ttserve.v1.device_pb2 import AttachResponse
from ttserve.v1.generation_pb2 import SubmissionGroup

DRAINING = TTServeError(Reason.DRAINING, "bye", retry_after=1.0)


def names(wired: Wired) -> list[list[str]]:
    """What each device was sent."""
    return [[sent.request_id for sent in s.submitted] for s in wired.sessions]


async def test_the_least_loaded_gets_a_request() -> None:
    wired = Wired(devices=2)
    wired.devices[0].load_reported(3)
    for name in "xyz":
        await wired.submit(name)
    assert names(wired) == [[], ["x", "y", "z"]]
    wired.devices[0].load_reported(0)
    await wired.submit("back")
    assert names(wired)[0] == ["back"]


async def test_equals_take_turns() -> None:
    wired = Wired(devices=3)
    for name in "uvwxyz":
        await wired.submit(name)
    assert names(wired) == [["u", "x"], ["v", "y"], ["w", "z"]]


async def test_the_load_of_others_is_that_of_the_last_heartbeat() -> None:
    """Ours of what a device reports are not counted twice."""
    wired = Wired()
    for name in "ab":
        await wired.submit(name)
    wired.device.load_reported(5)
    assert wired.device.load == 5
    await wired.submit("c")
    assert wired.device.load == 6
    wired.client.abort(["a", "b"], device_pb2.ABORT_CAUSE_CLIENT)
    assert wired.device.load == 4


@pytest.mark.parametrize("was_accepted", [False, True])
async def test_a_loss_before_the_first_token_is_made_good(
    *, was_accepted: bool
) -> None:
    wired = Wired(devices=2)
    admission = await wired.submit("r")
    if was_accepted:
        wired.device.take(accepted(1))
    wired.device.session_lost(LOST)
    assert names(wired) == [["r"], ["r"]]
    second = wired.devices[1]
    second.take(accepted(1))
    await admission
    second.take(step(1))
    second.take(step(1, finish=True))
    assert [o.finish_reason for o in await wired.outputs()] == [None]
    assert [o.finish_reason for o in await wired.outputs()] == [FinishReason.STOP]
    assert len(wired.client) == 0
    assert not wired.failures
    assert not wired.counted
    assert wired.moves == [("a", Reason.DEVICE_LOST)]


async def test_a_loss_after_the_first_token_is_an_error() -> None:
    wired = Wired(devices=2)
    await wired.submit("r")
    wired.device.take(accepted(1))
    wired.device.take(step(1))
    wired.device.session_lost(LOST)
    assert names(wired) == [["r"], []]
    await wired.outputs()
    assert [o.finish_reason for o in await wired.outputs()] == [FinishReason.ERROR]
    assert [failure.error for failure in wired.failures] == [LOST]


async def test_a_second_loss_is_an_error() -> None:
    wired = Wired(devices=3)
    admission = await wired.submit("r")
    wired.devices[0].session_lost(LOST)
    wired.devices[1].session_lost(LOST)
    with pytest.raises(TTServeError):
        await admission
    assert names(wired) == [["r"], ["r"], []]
    assert len(wired.client) == 0


@pytest.mark.parametrize(
    ("error", "moved"),
    [
        (DRAINING, True),
        (TTServeError(Reason.NOT_READY, "warming up"), True),
        (FULL, True),
        (TTServeError(Reason.INVALID_FIELD, "no"), False),
        (TTServeError(Reason.STEP_FAILED, "no"), False),
    ],
)
async def test_a_refusal_that_is_no_fault_of_the_request(
    error: TTServeError, *, moved: bool
) -> None:
    wired = Wired(devices=2)
    admission = await wired.submit("r")
    wired.device.take(rejected(1, error))
    assert names(wired) == [["r"], ["r"] if moved else []]
    assert admission.done() is not moved


async def test_a_full_queue_is_left_only_for_one_with_room() -> None:
    """Rows and queue of the fake: 32 and 128."""
    wired = Wired(devices=2)
    wired.devices[1].load_reported(159)
    wired.devices[0].load_reported(158)
    first = await wired.submit("fits")
    wired.devices[0].take(rejected(1, FULL))
    assert names(wired) == [["fits"], ["fits"]]
    second = await wired.submit("does not")
    wired.devices[0].take(rejected(2, FULL))
    assert names(wired) == [["fits", "does not"], ["fits"]]
    assert not first.done()
    with pytest.raises(TTServeError) as refusal:
        await second
    assert refusal.value.reason is Reason.QUEUE_FULL


@pytest.mark.parametrize(
    ("error", "moved"),
    [
        (DRAINING, True),
        (TTServeError(Reason.MESH_POISONED, "the mesh is lost"), True),
        (TTServeError(Reason.STEP_FAILED, "no"), False),
    ],
)
async def test_an_end_before_the_first_token(
    error: TTServeError, *, moved: bool
) -> None:
    """What ends with the device service runs elsewhere; a failed step is an answer."""
    wired = Wired(devices=2)
    await wired.submit("r")
    wired.device.take(accepted(1))
    output = step_pb2.StepOutput(handles=[1], token_counts=[0])
    finish = output.extras.add(index=0).finish
    finish.reason = step_pb2.FINISH_REASON_ERROR
    finish.error.CopyFrom(to_status(error))
    wired.device.take(AttachResponse(step=output))
    assert names(wired) == [["r"], ["r"] if moved else []]
    assert len(wired.device) == 0
    assert len(wired.client) == int(moved)


async def test_a_draining_device_keeps_what_it_has_and_gets_nothing_new() -> None:
    wired = Wired(devices=2)
    await wired.submit("r")
    wired.drain()
    for name in "xyz":
        await wired.submit(name)
    assert names(wired) == [["r"], ["x", "y", "z"]]
    wired.client.abort(["r"], device_pb2.ABORT_CAUSE_CLIENT)
    assert wired.sessions[0].aborted == [([1], device_pb2.ABORT_CAUSE_CLIENT)]
    assert not wired.sessions[1].aborted


async def test_a_draining_device_is_let_go_after_the_last_answer() -> None:
    """Whichever it is: what is not read when the connection closes may be lost."""
    wired = Wired(devices=2)
    (first, second), session = wired.devices, wired.sessions[0]
    for name, load in zip("abc", (9, 9, 9), strict=True):
        second.load_reported(load)
        await wired.submit(name)
    wired.drain()
    first.take(accepted(1))
    first.take(step(1))
    first.take(step(1, finish=True))
    first.take(rejected(2, DRAINING))
    assert session.finished == 0
    wired.client.abort(["c"], device_pb2.ABORT_CAUSE_CLIENT)
    assert session.finished == 1
    assert wired.sessions[1].finished == 0


@pytest.mark.parametrize("last", ["finish", "rejection", "abort", "nothing"])
async def test_every_kind_of_last_answer_lets_it_go(last: str) -> None:
    wired = Wired(devices=2)
    if last != "nothing":
        await wired.submit("r")
    wired.drain()
    match last:
        case "finish":
            assert wired.session.finished == 0
            wired.device.take(step(1, finish=True))
        case "rejection":
            assert wired.session.finished == 0
            wired.device.take(rejected(1, DRAINING))
        case "abort":
            assert wired.session.finished == 0
            wired.client.abort(["r"], device_pb2.ABORT_CAUSE_CLIENT)
    assert wired.session.finished == 1


async def test_children_stay_together() -> None:
    """In one device service from the start, in another after a loss."""
    wired = Wired(devices=2)
    family = Placement(group=SubmissionGroup(group_id=1, count=3))
    for name in "xy":
        await wired.submit(name, placement=family)
    wired.device.session_lost(LOST)
    await wired.submit("z", placement=family)
    assert names(wired) == [["x", "y"], ["x", "y", "z"]]
    assert {s.group.group_id for s in wired.sessions[1].submitted} == {1}
    assert wired.moves == [("a", Reason.DEVICE_LOST)]


async def test_a_refused_family_moves_once() -> None:
    wired = Wired(devices=2)
    family = Placement(group=SubmissionGroup(group_id=1, count=2))
    for name in "xy":
        await wired.submit(name, placement=family)
    for handle in (1, 2):
        wired.device.take(rejected(handle, FULL))
    assert names(wired) == [["x", "y"], ["x", "y"]]
    assert len(wired.device) == 0
    assert len(wired.moves) == 1


async def test_a_family_of_which_one_has_begun_does_not_move() -> None:
    wired = Wired(devices=2)
    family = Placement(group=SubmissionGroup(group_id=1, count=2))
    for handle, name in enumerate("xy", 1):
        await wired.submit(name, placement=family)
        wired.device.take(accepted(handle))
    wired.device.take(step(1))
    wired.device.session_lost(LOST)
    await wired.outputs()
    assert [o.request_id for o in await wired.outputs()] == ["x", "y"]
    assert names(wired) == [["x", "y"], []]


async def test_one_that_is_left_is_used_and_none_refuses() -> None:
    wired = Wired(devices=2)
    wired.devices[0].session_lost(LOST)
    assert wired.client.refusal is None
    wired.drain(1)
    assert wired.client.refusal is not None
    assert wired.client.refusal.reason is Reason.DRAINING
    wired.devices[1].close()
    assert wired.client.refusal is LOST
    wired.connect(wired.devices[0])
    assert wired.client.refusal is None


async def test_gauges_are_sums_and_usage_a_mean() -> None:
    wired = Wired(devices=2)
    for name, device in zip("xy", wired.devices, strict=True):
        await wired.submit(name)
        device.take(accepted(1))
    wired.devices[0].take(step(1))  # one runs, half of the blocks are in use
    second = step(1)
    second.step.stats.kv_usage = 0.25
    second.step.stats.prefix_cache_hits = 7
    wired.devices[1].take(second)
    await wired.client.get_output_async()
    stats = (await wired.client.get_output_async()).scheduler_stats
    assert stats is not None
    assert (stats.num_running_reqs, stats.kv_cache_usage) == (2, 0.375)
    assert stats.prefix_cache_stats.hits == 7
    wired.devices[0].session_lost(LOST)
    await wired.outputs()
    alone = (await wired.client.get_output_async()).scheduler_stats
    assert alone is not None
    assert (alone.num_running_reqs, alone.kv_cache_usage) == (1, 0.25)

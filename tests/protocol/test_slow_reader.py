"""A frontend that does not read: merged, bounded, nobody else's problem."""

from __future__ import annotations

import asyncio
import time

import pytest

from device_service.outbox import MAX_ANSWERS
from tests.support.attach_client import Output, unpack
from tests.support.scripted_engine import scripted_token
from tests.support.waiting import eventually
from tests.support.wire import Service, serving
from ttserve.v1 import generation_pb2, inspector_pb2

LOGPROBS = generation_pb2.LogprobsRequest(top_count=20)

SMALL_WINDOW = {"http2.bdp_probe": 0, "http2.lookahead_bytes": 65536}
"""A transport that buffers little, so that a test need not produce much."""


async def run_steps(service: Service, count: int) -> None:
    """Step as fast as the loop takes the outcomes."""
    for _ in range(count):
        service.engine.step()
        await asyncio.sleep(0)


async def test_steps_of_a_slow_reader_are_merged() -> None:
    async with serving(max_sequence_tokens=4096, num_blocks=300) as service:
        slow = await service.attach("slow", **SMALL_WINDOW)
        handle = await slow.submit(stop__max_output_tokens=4000, logprobs=LOGPROBS)
        await slow.next("accepted")
        await run_steps(service, 4000)  # and nobody reads meanwhile
        inspector = service.inspector()
        state = await inspector.GetState(inspector_pb2.GetStateRequest())
        assert state.sessions[0].merged_steps > 1000

        found = {handle: Output()}
        while found[handle].finish is None:
            step = (await slow.next("step")).step
            assert step.ByteSize() < 2 << 20
            unpack(step, found)
        output = found[handle]
        assert output.token_ids == [scripted_token([5, 6, 7], i) for i in range(4000)]
        assert len(output.logprobs) == 4000
        assert output.messages < 2000


async def test_slow_reader_slows_nobody_else() -> None:
    async with serving(max_sequence_tokens=4096, num_blocks=300) as service:
        slow, quick = (
            await service.attach("slow", **SMALL_WINDOW),
            await service.attach("quick"),
        )
        await slow.submit(
            request_id="slow", stop__max_output_tokens=4000, logprobs=LOGPROBS
        )
        await slow.next("accepted")
        await run_steps(service, 2000)
        handle = await quick.submit(request_id="quick")
        await quick.next("accepted")
        for index in range(4):
            service.engine.step()
            began = time.monotonic()
            step = (await quick.next("step")).step
            assert time.monotonic() - began < 1.0
            assert step.handles == [handle]
            assert step.token_ids == [scripted_token([5, 6, 7], index)]


async def test_aborted_request_leaves_the_outbox_of_a_slow_reader() -> None:
    async with serving(max_sequence_tokens=4096, num_blocks=300) as service:
        client = await service.attach("slow", **SMALL_WINDOW)
        handle = await client.submit(stop__max_output_tokens=4000, logprobs=LOGPROBS)
        await client.next("accepted")
        await run_steps(service, 2000)
        await client.abort(handle)
        await eventually(lambda: not service.engine.jobs)
        service.engine.step()
        await client.ping(1)
        tokens = 0
        while (message := await client.read()).WhichOneof("event") != "pong":
            tokens += len(message.step.token_ids)
        assert tokens < 1500  # what was in the transport before the abort


async def test_frontend_that_submits_and_never_reads_is_bounded(
    service: Service,
) -> None:
    """Answers are bounded: beyond them nothing more is read from the frontend."""
    client = await service.attach("slow", **SMALL_WINDOW)
    sent = 0
    with pytest.raises(asyncio.TimeoutError):
        while sent < 5000:
            await asyncio.wait_for(client.submit(request_id="r" * 20_000), timeout=1.0)
            sent += 1
    assert sent > MAX_ANSWERS


async def test_unread_requests_count_against_the_frontend() -> None:
    """A frontend that reads no output cannot pile up ended requests."""
    async with serving(rows_per_lane=2, max_queued_requests=2) as service:
        client = await service.attach("slow", **SMALL_WINDOW)
        for number in range(400):
            await client.submit(
                stop__max_output_tokens=100,
                logprobs=LOGPROBS,
                request_id=f"r-{number}",
            )
            await run_steps(service, 101)
        refused = 0
        while refused == 0:
            message = await client.read()
            refused += message.WhichOneof("event") == "rejected"

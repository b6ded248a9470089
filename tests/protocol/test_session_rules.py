"""What ends a session: wrong order, wrong versions, silence, death."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from device_service.records import AbortCause
from device_service.serving import ServiceOptions
from tests.support.attach_client import AttachClient, submission
from tests.support.waiting import eventually
from tests.support.wire import Service, serving
from ttserve.errors import Reason, TTServeError
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.v1 import device_pb2


async def ended(client: AttachClient) -> TTServeError:
    error = await client.ended()
    assert error is not None, "the stream ended with OK"
    return error


@pytest.mark.parametrize("event", ["submit", "frame", "abort", "ping"])
async def test_nothing_before_open(service: Service, event: str) -> None:
    contents = {
        "submit": submission(),
        "frame": device_pb2.SubmissionFrame(handle=1, last=True),
        "abort": device_pb2.AbortHandles(cause=device_pb2.ABORT_CAUSE_CLIENT),
        "ping": device_pb2.Ping(),
    }
    client = AttachClient(service.channel())
    await client.send(**{event: contents[event]})
    error = await ended(client)
    assert error.reason is Reason.BAD_SESSION_ORDER
    assert event in error.message


async def test_second_open_ends_the_stream_and_its_requests(service: Service) -> None:
    client = await service.attach()
    await client.submit(request_id="r")
    await client.next("accepted")
    await client.send(
        open=device_pb2.OpenSession(
            protocol_minor=1, frontend_name="again", vllm_version="0.30.0"
        )
    )
    assert (await ended(client)).reason is Reason.BAD_SESSION_ORDER
    assert service.engine.aborts == [("r", AbortCause.SESSION_LOST)]


async def test_other_vllm_version_is_refused(service: Service) -> None:
    client = AttachClient(service.channel())
    with pytest.raises(Exception, match="vLLM"):
        await client.open(vllm_version="0.29.0")
    error = await ended(client)
    assert error.reason is Reason.VERSION_MISMATCH
    assert error.metadata == {"frontend": "0.29.0", "deviceService": "0.30.0"}


async def test_protocol_minor_too_old_is_refused(service: Service) -> None:
    client = AttachClient(service.channel())
    with pytest.raises(Exception, match="minor 0"):
        await client.open(minor=0)
    assert (await ended(client)).reason is Reason.VERSION_MISMATCH


async def test_newer_protocol_minor_is_welcome(service: Service) -> None:
    opened = await AttachClient(service.channel()).open(minor=99)
    assert opened.protocol_minor == PROTOCOL_MINOR


@pytest.mark.parametrize("name", ["", "x" * 64, "line\nbreak"])
async def test_frontend_name_is_checked(service: Service, name: str) -> None:
    client = AttachClient(service.channel())
    with pytest.raises(Exception, match="frontend_name"):
        await client.open(name)
    assert (await ended(client)).metadata == {"field": "open.frontend_name"}


@pytest.mark.parametrize("payload", [b"", b"\xf2\x06\x00"], ids=["empty", "newer"])
async def test_message_without_a_known_event(service: Service, payload: bytes) -> None:
    client = await service.attach()
    await client.call.write(device_pb2.AttachRequest.FromString(payload))
    error = await ended(client)
    assert error.reason is Reason.INVALID_FIELD
    assert error.metadata == {"field": "event"}


async def test_message_that_is_no_attach_request(service: Service) -> None:
    channel: Any = service.channel()
    client = AttachClient(service.channel())
    client.call = channel.stream_stream("/ttserve.v1.Device/Attach")()
    await client.call.write(b"\xff\xff\xff")
    assert (await ended(client)).metadata == {"field": "event"}


@pytest.mark.parametrize("cause", [device_pb2.ABORT_CAUSE_UNSPECIFIED, 99])
async def test_unknown_abort_cause_is_an_error(
    service: Service, cause: device_pb2.AbortCause
) -> None:
    client = await service.attach()
    await client.abort(1, cause=cause)
    assert (await ended(client)).metadata == {"field": "abort.cause"}


async def test_live_handle_used_again_ends_the_stream(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit()
    await client.next("accepted")
    await client.submit(handle, request_id="other")
    assert (await ended(client)).metadata == {"field": "handle"}


# -- silence ---------------------------------------------------------------

IMPATIENT = ServiceOptions(silence_limit=0.3)


async def test_silent_frontend_is_dropped_and_its_requests_aborted() -> None:
    async with serving(options=IMPATIENT) as service:
        client = await service.attach()
        await client.submit(request_id="r")
        began = time.monotonic()
        error = await ended(client)
        assert error.reason is Reason.HEARTBEAT_LOST
        assert int(error.metadata["silenceMs"]) >= 300
        assert 0.2 < time.monotonic() - began < 2.0
        assert service.engine.aborts == [("r", AbortCause.SESSION_LOST)]


async def test_stream_that_never_opens_is_dropped() -> None:
    async with serving(options=IMPATIENT) as service:
        client = AttachClient(service.channel())
        assert (await ended(client)).reason is Reason.HEARTBEAT_LOST


async def test_any_message_counts_as_a_heartbeat() -> None:
    async with serving(options=IMPATIENT) as service:
        client = await service.attach()
        for _ in range(8):
            await asyncio.sleep(0.1)
            await client.abort(77)  # an unknown handle: ignored, but a sign of life
        await client.ping(1)
        assert (await client.next("pong")).pong.sequence == 1


async def test_half_closed_stream_is_not_silent() -> None:
    async with serving(options=IMPATIENT) as service:
        client = await service.attach()
        handle = await client.submit()
        await client.next("accepted")
        await client.call.done_writing()
        await asyncio.sleep(0.6)
        with service.engine.ticking():
            assert len((await client.outputs(handle))[handle].token_ids) == 4


# -- death -----------------------------------------------------------------


async def test_cancelled_stream_aborts_its_requests(service: Service) -> None:
    client, other = await service.attach("a"), await service.attach("b")
    await client.submit(request_id="gone")
    await client.next("accepted")
    handle = await other.submit(request_id="stays")
    await other.next("accepted")
    client.call.cancel()
    await eventually(lambda: len(service.engine.aborts) == 1)
    assert service.engine.aborts == [("gone", AbortCause.SESSION_LOST)]
    with service.engine.ticking():
        assert len((await other.outputs(handle))[handle].token_ids) == 4


FRONTEND_PROCESS = """
    import asyncio, sys
    import grpc
    from tests.support.attach_client import AttachClient

    async def main(address):
        client = AttachClient(grpc.aio.insecure_channel(address))
        await client.open("doomed")
        for number in range(4):
            await client.submit(request_id=f"doomed-{number}")
            await client.next("accepted")
        print("ready", flush=True)
        await asyncio.sleep(60)

    asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_dead_or_stopped_frontend_process(how: signal.Signals) -> None:
    """A killed process is noticed at once, a stopped one by its silence."""
    async with serving(options=ServiceOptions(silence_limit=1.0)) as service:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(FRONTEND_PROCESS),
            service.address,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
            assert len(service.engine.jobs) == 4
            process.send_signal(how)
            began = time.monotonic()
            await eventually(lambda: not service.engine.jobs)
            limit = 1.0 if how is signal.SIGKILL else 2.0
            assert time.monotonic() - began < limit
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        causes = {cause for _, cause in service.engine.aborts}
        assert causes == {AbortCause.SESSION_LOST}

"""What leaves first: urgent messages, then submissions in their order."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.device.outbox import LARGEST_WHOLE_SUBMISSION, Outbox
from ttserve.protocol import FRAME_BYTES
from ttserve.v1 import device_pb2
from ttserve.v1.device_pb2 import AttachRequest
from ttserve.v1.generation_pb2 import Submission, SubmissionGroup

CLIENT = device_pb2.ABORT_CAUSE_CLIENT


def submission(handle: int, size: int = 10, *, group: bool = False) -> Submission:
    return Submission(
        handle=handle,
        request_id="r" * size,
        group=SubmissionGroup(group_id=1, count=2) if group else None,
    )


async def following(outbox: Outbox) -> AttachRequest:
    message = await outbox.next()
    assert message is not None
    return message


async def everything(outbox: Outbox) -> list[AttachRequest]:
    """All that can be written now."""
    found = []
    while True:
        try:
            found.append(await asyncio.wait_for(following(outbox), 0.01))
        except asyncio.TimeoutError:
            return found


def kinds(messages: list[AttachRequest]) -> list[str | None]:
    return [message.WhichOneof("event") for message in messages]


async def test_submissions_keep_their_order() -> None:
    outbox = Outbox()
    for handle in (1, 2, 3):
        outbox.put_submission(submission(handle))
    assert [m.submit.handle for m in await everything(outbox)] == [1, 2, 3]


async def test_pings_go_between_frames() -> None:
    outbox = Outbox()
    outbox.put_submission(submission(1, 3 * FRAME_BYTES))
    first = await following(outbox)
    outbox.put_ping(7)
    outbox.put_abort([99], CLIENT)
    rest = await everything(outbox)
    assert first.WhichOneof("event") == "frame"
    assert kinds(rest) == ["ping", "abort", "frame", "frame", "frame"]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 3 * FRAME_BYTES))
def test_frames_are_the_submission(size: int) -> None:
    async def frames() -> list[AttachRequest]:
        outbox = Outbox()
        outbox.put_submission(submission(4, size))
        return await everything(outbox)

    messages = asyncio.run(frames())
    whole = submission(4, size)
    if whole.ByteSize() <= LARGEST_WHOLE_SUBMISSION:
        assert [m.submit for m in messages] == [whole]
        return
    assert {m.frame.handle for m in messages} == {4}
    assert [m.frame.last for m in messages] == [False] * (len(messages) - 1) + [True]
    assert max(len(m.frame.data) for m in messages) <= FRAME_BYTES
    joined = b"".join(m.frame.data for m in messages)
    assert Submission.FromString(joined) == whole


async def test_an_abort_of_what_was_never_sent_is_silence() -> None:
    outbox = Outbox()
    outbox.put_submission(submission(1))
    outbox.put_submission(submission(2))
    outbox.put_abort([1], CLIENT)
    (only,) = await everything(outbox)
    assert only.submit.handle == 2


async def test_an_abort_follows_the_frames_of_its_submission() -> None:
    outbox = Outbox()
    outbox.put_submission(submission(1, 3 * FRAME_BYTES))
    outbox.put_submission(submission(2))
    await outbox.next()
    outbox.put_abort([1, 50], CLIENT)
    rest = await everything(outbox)
    assert kinds(rest) == ["abort", "frame", "frame", "frame", "abort", "submit"]
    assert list(rest[0].abort.handles) == [50]
    assert list(rest[4].abort.handles) == [1]
    assert rest[3].frame.last


async def test_children_are_sent_before_they_are_aborted() -> None:
    """Their siblings may be waiting for the group to be complete."""
    outbox = Outbox()
    outbox.put_submission(submission(1, group=True))
    outbox.put_submission(submission(2, FRAME_BYTES, group=True))
    outbox.put_abort([1, 2], CLIENT)
    messages = await everything(outbox)
    assert kinds(messages) == ["submit", "abort", "frame", "frame", "abort"]


async def test_next_waits() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put_ping(1)
    message = await waiting
    assert message is not None
    assert message.ping.sequence == 1


async def test_what_is_queued_when_it_closes_is_still_written() -> None:
    outbox = Outbox()
    outbox.put_submission(submission(1, 2 * FRAME_BYTES))
    begun = await following(outbox)
    outbox.put_abort([1], CLIENT)
    outbox.close()
    outbox.put_ping(1)
    assert begun.WhichOneof("event") == "frame"
    rest = [await following(outbox) for _ in range(3)]
    assert kinds(rest) == ["frame", "frame", "abort"]
    assert await outbox.next() is None


async def test_closing_wakes_who_waits() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    outbox.close()
    assert await waiting is None

"""What arrives in parts: frames of a submission, children of a request."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_service import frames
from device_service.frames import FrameAssembler
from device_service.groups import MAX_UNWANTED, Groups
from device_service.submission import Group
from ttserve.errors import Reason, TTServeError
from ttserve.protocol import FRAME_BYTES
from ttserve.v1 import device_pb2


def frame(
    handle: int, data: bytes = b"", *, last: bool = False
) -> device_pb2.SubmissionFrame:
    return device_pb2.SubmissionFrame(handle=handle, data=data, last=last)


@given(
    contents=st.dictionaries(
        st.integers(1, 5), st.lists(st.binary(max_size=9), min_size=1, max_size=6)
    ),
    order=st.randoms(use_true_random=False),
)
def test_interleaved_frames_come_together(
    contents: dict[int, list[bytes]], order: Random
) -> None:
    assembler = FrameAssembler(1000)
    waiting = {handle: list(pieces) for handle, pieces in contents.items()}
    found: dict[int, bytes] = {}
    while waiting:
        handle = order.choice(sorted(waiting))
        piece = waiting[handle].pop(0)
        last = not waiting[handle]
        whole = assembler.add(frame(handle, piece, last=last))
        if last:
            del waiting[handle]
            assert whole is not None
            found[handle] = whole
        else:
            assert whole is None
            assert handle in assembler
    assert found == {handle: b"".join(pieces) for handle, pieces in contents.items()}


def test_too_large_is_refused_once_and_the_rest_swallowed() -> None:
    assembler = FrameAssembler(10)
    assert assembler.add(frame(1, b"x" * 10)) is None
    with pytest.raises(TTServeError) as caught:
        assembler.add(frame(1, b"x"))
    assert caught.value.metadata["maxSubmissionBytes"] == "10"
    assert assembler.add(frame(1, b"x" * 10)) is None
    assert assembler.add(frame(1, b"x" * 10, last=True)) is None
    assert assembler.add(frame(1, b"new", last=True)) == b"new"


def test_refused_with_its_last_frame_leaves_nothing() -> None:
    assembler = FrameAssembler(10)
    with pytest.raises(TTServeError):
        assembler.add(frame(1, b"x" * 11, last=True))
    assert assembler.add(frame(1, b"new", last=True)) == b"new"


def test_a_frame_has_a_size() -> None:
    assembler = FrameAssembler(1 << 30)
    assert assembler.add(frame(1, bytes(FRAME_BYTES))) is None
    with pytest.raises(TTServeError, match="at most 262144"):
        assembler.add(frame(2, bytes(FRAME_BYTES + 1)))


def test_all_unfinished_submissions_together_are_bounded() -> None:
    assembler = FrameAssembler(1000)
    for handle in range(frames.MAX_UNFINISHED_SIZES):
        assembler.add(frame(handle, bytes(1000)))
    with pytest.raises(TTServeError) as caught:
        assembler.add(frame(99, b"x"))
    assert caught.value.reason is Reason.QUEUE_FULL
    assembler.discard(0)
    assert assembler.add(frame(100, b"x")) is None


def test_number_of_unfinished_submissions_is_bounded() -> None:
    assembler = FrameAssembler(1000)
    for handle in range(frames.MAX_UNFINISHED):
        assembler.add(frame(handle))
    with pytest.raises(TTServeError) as caught:
        assembler.add(frame(5000))
    assert caught.value.reason is Reason.QUEUE_FULL


def test_aborts_in_the_middle_do_not_pile_up() -> None:
    assembler = FrameAssembler(1000)
    for handle in range(10 * frames.MAX_UNFINISHED):
        assembler.add(frame(handle, b"x"))
        assembler.discard(handle)
    assert assembler.add(frame(1 << 40, b"x", last=True)) == b"x"


REFUSED = TTServeError(Reason.INVALID_FIELD, "no")


def test_family_is_complete_with_its_last_child() -> None:
    groups = Groups()
    assert groups.add(Group(1, 3), 10, REFUSED) is None
    assert groups.add(Group(2, 2), 11, None) is None
    assert groups.add(Group(1, 3), 12, None) is None
    family = groups.add(Group(1, 3), 13, None)
    assert family is not None
    assert list(family.children) == [10, 12, 13]
    assert family.first_error is REFUSED
    assert family.candidates == []


def test_aborted_children_still_complete_their_family() -> None:
    groups = Groups()
    groups.add(Group(1, 3), 10, REFUSED)
    groups.abort(Group(1, 3), 10)
    assert groups.add(Group(1, 3), 11, REFUSED) is None
    family = groups.add(Group(1, 3), 12, REFUSED)
    assert family is not None
    assert family.children == {10: None, 11: REFUSED, 12: REFUSED}


def test_families_that_nobody_wants_do_not_pile_up() -> None:
    groups = Groups()
    wanted = Group(0, 2)
    groups.add(wanted, 0, REFUSED)
    for number in range(1, 3 * MAX_UNWANTED):
        groups.add(Group(number, 2), number, REFUSED)
        groups.abort(Group(number, 2), number)
    assert groups.add(wanted, 99_999, REFUSED) is not None
    oldest = Group(1, 2)
    assert groups.add(oldest, 100_000, REFUSED) is None  # it was forgotten
    newest = Group(3 * MAX_UNWANTED - 1, 2)
    assert groups.add(newest, 100_001, REFUSED) is not None

"""The generations of one Attach stream, by handle, from arrival to the end.

    frames or submit -> CHECKING -> (HELD for its siblings) -> RUNNING -> gone

Small submissions are checked at once; large ones, and those with a grammar, in
a worker thread, so that one stream's long prompt delays nobody's heartbeat.
Event loop only, but for `_examine`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from device_service.admission import RETRY_AFTER_SECONDS, Admission, Candidate
from device_service.codec.answers import accepted, rejected
from device_service.codec.requests import parse_submission, submission_from_attach
from device_service.groups import Family, Groups
from device_service.outbox import Outbox
from device_service.records import AbortCause, RequestUpdate, StepUpdates, UpdateSink
from device_service.submission import Group
from ttserve.errors import Reason, TTServeError, invalid_field
from ttserve.v1 import generation_pb2

logger = logging.getLogger(__name__)

INLINE_BYTES = 8192
"""Largest submission that is checked on the event loop, in under 1 ms.

That is at most 8192 prompt tokens, whose blocks have to be hashed.
"""

TOO_MANY = TTServeError(
    Reason.QUEUE_FULL,
    "the frontend has too many generations open or unread",
    retry_after=RETRY_AFTER_SECONDS,
)

Outcome = Candidate | TTServeError


class Stage(enum.Enum):
    """How far a submission has come."""

    CHECKING = enum.auto()
    HELD = enum.auto()
    RUNNING = enum.auto()


@dataclass(slots=True)
class Entry:
    """One live handle. After an abort nothing more is sent for it."""

    stage: Stage = Stage.CHECKING
    request_id: str = ""
    external_request_id: str = ""
    group: Group | None = None
    aborted: bool = False


@dataclass(frozen=True)
class Stream:
    """The stream that the generations belong to.

    `settled` is called whenever a handle is gone. `checkers` runs the checks
    that would hold up the event loop.
    """

    number: int
    sink: UpdateSink
    outbox: Outbox
    checkers: Executor
    settled: Callable[[], None]


class Submissions:
    """Owns the live handles of one stream and the tasks that check them."""

    def __init__(self, stream: Stream, admission: Admission) -> None:
        self._stream = stream
        self._admission = admission
        self._entries: dict[int, Entry] = {}
        self._groups = Groups()
        self._checks: set[asyncio.Task[None]] = set()
        self._abandoned = False

    def __len__(self) -> int:
        """Handles that are live."""
        return len(self._entries)

    def __contains__(self, handle: int) -> bool:
        return handle in self._entries

    @property
    def busy(self) -> bool:
        """Whether something is still being checked or generated."""
        return any(entry.stage is not Stage.HELD for entry in self._entries.values())

    def submit(self, message: generation_pb2.Submission, size: int) -> None:
        """Take a whole submission of `size` bytes, as it stands on the wire."""
        entry = self._enter(message.handle)
        if entry is None:
            return
        self._read(entry, message)
        if size > INLINE_BYTES or message.HasField("structured_output"):
            self._check_aside(message.handle, message)
        else:
            self._arrived(message.handle, self._examine(message))

    def submit_bytes(self, handle: int, data: bytes) -> None:
        """Take a submission that came in frames."""
        if self._enter(handle) is not None:
            self._check_aside(handle, data)

    def refuse(
        self, handle: int, error: TTServeError, entry: Entry | None = None
    ) -> None:
        """Answer a submission that is not taken; `entry` if it has got so far."""
        known = entry or Entry()
        self._admission.journal.refuse(
            error, known.request_id, known.external_request_id
        )
        self._stream.outbox.put(rejected(handle, error))

    def abort(self, handles: Iterable[int], cause: AbortCause) -> None:
        """Stop generations; nothing more is sent for them."""
        running = []
        for handle in handles:
            entry = self._entries.get(handle)
            if entry is None or entry.aborted:
                continue
            entry.aborted = True
            if entry.stage is Stage.RUNNING:
                running.append(entry.request_id)
                self._stream.outbox.drop(handle)
            elif entry.stage is Stage.HELD:
                assert entry.group is not None
                self._groups.abort(entry.group, handle)
                self._leave(handle)
        self._admission.abort(running, cause)

    def apply(self, step: StepUpdates) -> None:
        """Take what a step did: release what ended, queue what is wanted."""
        self._admission.journal.step(step.stats)
        wanted: list[RequestUpdate] = []
        for update in step.updates:
            entry = self._entries.get(update.handle)
            if entry is None:
                continue
            if not entry.aborted:
                wanted.append(update)
            if update.finish is not None:
                self._admission.release(entry.request_id, update)
                self._leave(update.handle)
        if not self._abandoned:
            self._stream.outbox.add(step, wanted)
            self._stream.settled()

    def refuse_held(self) -> None:
        """No sibling can come any more: answer those that wait for one."""
        error = invalid_field("group", "the stream ended before the group was complete")
        for handle, entry in list(self._entries.items()):
            if entry.stage is Stage.HELD:
                self._reject(handle, error)

    def abandon(self) -> None:
        """The stream is gone: end everything that came on it."""
        self._abandoned = True
        for task in self._checks:
            task.cancel()
        for handle, entry in list(self._entries.items()):
            if entry.stage is not Stage.RUNNING:
                self._leave(handle)
        self.abort(list(self._entries), AbortCause.SESSION_LOST)

    # -- checking ----------------------------------------------------------

    def _enter(self, handle: int) -> Entry | None:
        if handle in self._entries:
            raise invalid_field("handle", f"handle {handle} is still live")
        unsent = self._stream.outbox.unsent_requests
        if len(self) + unsent > 2 * self._admission.capacity:
            self.refuse(handle, TOO_MANY)
            return None
        entry = self._entries[handle] = Entry()
        return entry

    def _examine(self, message: generation_pb2.Submission) -> Outcome:
        """Decode and check a submission. Any thread."""
        try:
            return self._admission.prepare(submission_from_attach(message))
        except TTServeError as error:
            return error
        except Exception:
            logger.exception("submission %s cannot be examined", message.request_id)
            return TTServeError(Reason.INTERNAL, "internal error in admission")

    def _check_aside(
        self, handle: int, content: generation_pb2.Submission | bytes
    ) -> None:
        task = asyncio.create_task(self._check(handle, content))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(
        self, handle: int, content: generation_pb2.Submission | bytes
    ) -> None:
        loop, checkers = asyncio.get_running_loop(), self._stream.checkers
        try:
            if isinstance(content, bytes):
                content = await loop.run_in_executor(
                    checkers, parse_submission, content, handle
                )
                self._read(self._entries[handle], content)
            outcome = await loop.run_in_executor(checkers, self._examine, content)
        except TTServeError as error:
            outcome = error
        self._arrived(handle, outcome)

    def _read(self, entry: Entry, message: generation_pb2.Submission) -> None:
        """Note who it is, and with whom it comes."""
        entry.request_id = message.request_id
        entry.external_request_id = message.external_request_id
        entry.group = self._group(message)

    def _group(self, message: generation_pb2.Submission) -> Group | None:
        """The family to wait for; None where there is none that could complete."""
        count = message.group.count
        if message.HasField("group") and 2 <= count <= self._admission.capacity:
            return Group(message.group.group_id, count)
        return None

    # -- deciding ----------------------------------------------------------

    def _arrived(self, handle: int, outcome: Outcome) -> None:
        entry = self._entries[handle]
        child = None if entry.aborted else outcome
        if entry.group is None:
            self._decide(Family(count=1, children={handle: child}))
            return
        entry.stage = Stage.HELD
        family = self._groups.add(entry.group, handle, child)
        if child is None:
            self._leave(handle)
        if family is not None:
            self._decide(family)
        self._stream.settled()

    def _decide(self, family: Family) -> None:
        candidates, error = family.candidates, family.first_error
        if error is None and candidates:
            try:
                stream = self._stream
                self._admission.admit(candidates, stream.sink, stream.number)
            except TTServeError as refusal:
                error = refusal
        for handle, child in family.children.items():
            if child is None:
                self._leave(handle)
            elif error is None and isinstance(child, Candidate):
                self._accept(handle)
            else:
                own = child if isinstance(child, TTServeError) else error
                assert own is not None
                self._reject(handle, own)

    def _accept(self, handle: int) -> None:
        entry = self._entries[handle]
        entry.stage = Stage.RUNNING
        self._stream.outbox.put(accepted(handle))

    def _reject(self, handle: int, error: TTServeError) -> None:
        entry = self._entries[handle]
        self._leave(handle)
        self.refuse(handle, error, entry)

    def _leave(self, handle: int) -> None:
        self._entries.pop(handle, None)
        self._stream.settled()

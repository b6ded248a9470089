"""One Generate call: a request on a stream of its own."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from device_service.admission import Admission, Candidate
from device_service.codec.requests import submission_from_generate
from device_service.description import ModelDescription
from device_service.frames import too_large
from device_service.merging import PendingSteps, Piece
from device_service.records import AbortCause, StepUpdates
from device_service.serving import Serving
from device_service.updates import NO_SESSION
from ttserve.errors import invalid_field
from ttserve.v1 import device_pb2

logger = logging.getLogger(__name__)


async def prepare_generate(
    data: bytes, serving: Serving, external_request_id: str, trace: Mapping[str, str]
) -> Candidate:
    """Decode and check a call, in a worker thread: it may be of any size.

    `external_request_id` and the `trace` context come from its metadata.
    """
    admission = serving.require_open().admission
    model = serving.require_model().description

    def examine() -> Candidate:
        message = _parse(data, model)
        request_id = message.request_id or f"generate-{uuid.uuid4().hex}"
        return admission.prepare(
            submission_from_generate(
                message, model, request_id, external_request_id, trace
            )
        )

    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(serving.checkers, examine)


def _parse(data: bytes, model: ModelDescription) -> device_pb2.GenerateRequest:
    limit = model.limits.max_submission_bytes
    if len(data) > limit:
        raise too_large(len(data), limit)
    try:
        return device_pb2.GenerateRequest.FromString(data)
    except DecodeError as error:
        raise invalid_field("request", "the message is no GenerateRequest") from error


class GenerateCall:
    """The requests of one call, and where the engine leaves what they produce.

    call = GenerateCall(candidates, admission)
    call.begin()
    with closing(call):
        piece = await call.take()
    """

    def __init__(self, candidates: Sequence[Candidate], admission: Admission) -> None:
        self._candidates = candidates
        self._request_ids = {c.handle: c.request.request_id for c in candidates}
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._steps = PendingSteps()
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """Queue all of them, or raise and queue none."""
        self._admission.admit(self._candidates, self, NO_SESSION)

    def close(self) -> None:
        """Abort those that have not ended: nobody takes any more."""
        self.abort(AbortCause.CLIENT)

    def deliver(self, updates: StepUpdates) -> None:
        """Take a step's updates from the engine thread."""
        try:
            self._loop.call_soon_threadsafe(self._apply, updates)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            logger.debug("%s: updates after the end", self._request_ids)

    async def take(self) -> Piece:
        """Wait for what is new; the deltas are by the candidates' handles."""
        while not self._steps:
            self._changed.clear()
            await self._changed.wait()
        return self._steps.take()

    def abort(self, cause: AbortCause, *handles: int) -> None:
        """End those of the requests that have not ended, or all of them."""
        ids = self._request_ids
        chosen = handles or tuple(ids)
        self._admission.abort([ids[h] for h in chosen if h in ids], cause)

    def _apply(self, step: StepUpdates) -> None:
        self._admission.journal.step(step.stats)
        for update in step.updates:
            if update.finish is not None:
                request_id = self._request_ids.pop(update.handle)
                self._admission.release(request_id, update)
        self._steps.add(step, step.updates)
        self._changed.set()

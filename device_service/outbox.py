"""What waits to be written to one Attach stream. Event loop only.

Answers (accepted, rejected, pong, draining) go out in order and before step
outputs, so a request is accepted before its first token. Of step outputs at
most one is pending, however slowly the frontend reads (see `merging`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from device_service.codec.outputs import step_output
from device_service.merging import PendingSteps
from device_service.records import RequestUpdate, StepUpdates
from ttserve.v1 import device_pb2

MAX_ANSWERS = 1024
"""Answers beyond which no more messages are read from the frontend."""


class Outbox:
    """Ordered answers and one merged step output, for one reader."""

    def __init__(self) -> None:
        self._answers: deque[device_pb2.AttachResponse] = deque()
        self._steps = PendingSteps()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._closed = False

    @property
    def merged_steps(self) -> int:
        """Steps that were merged because the frontend read slowly."""
        return self._steps.merged_steps

    @property
    def unsent_requests(self) -> int:
        """Requests that have output which is not written yet."""
        return len(self._steps)

    def put(self, answer: device_pb2.AttachResponse) -> None:
        """Queue an answer."""
        self._answers.append(answer)
        self._changed.set()

    def add(self, step: StepUpdates, updates: list[RequestUpdate]) -> None:
        """Queue what a step did for the requests that the frontend still wants."""
        self._steps.add(step, updates)
        self._changed.set()

    def drop(self, handle: int) -> None:
        """Forget the output of a request that the frontend has aborted."""
        self._steps.drop(handle)

    def close(self) -> None:
        """End the stream once everything that is queued now has been taken."""
        self._closed = True
        self._changed.set()

    async def room(self) -> None:
        """Wait until there are few enough answers to read another message."""
        while len(self._answers) >= MAX_ANSWERS:
            self._taken.clear()
            await self._taken.wait()

    async def take(self) -> device_pb2.AttachResponse | None:
        """Wait for the next message; None when the outbox is closed and empty."""
        while True:
            if self._answers:
                self._taken.set()
                return self._answers.popleft()
            if self._steps:
                return device_pb2.AttachResponse(step=step_output(self._steps.take()))
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()

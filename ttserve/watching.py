"""Follows one device service: its state, and every step as it happens.

For whoever shows them: the frontend's page and `tt-top`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import grpc
import grpc.aio

from ttserve.errors import Reason
from ttserve.status import from_rpc_error
from ttserve.v1 import inspector_pb2, inspector_pb2_grpc

STATE_SECONDS = 0.25
ANSWER_SECONDS = 2.0
RETRY_SECONDS = 0.5
HISTORY = 120
"""Steps before the first that was watched."""


class Observer(Protocol):
    """Who is told; on the event loop, in the order in which things happened."""

    def on_link(self, trouble: str) -> None:
        """Why nothing is heard of the device service; empty when all is well."""

    def on_state(self, state: inspector_pb2.GetStateResponse) -> None:
        """A new picture. Another `instance_id` means that steps count anew."""

    def on_steps(self, steps: Sequence[inspector_pb2.StepRecord]) -> None:
        """Steps that have not been told before, oldest first."""

    def on_lost(self, steps: int) -> None:
        """So many steps were not sent, because we read too slowly."""


class Watch:
    """Keeps one WatchSteps stream open, and asks for the state beside it."""

    def __init__(self, channel: grpc.aio.Channel, observer: Observer) -> None:
        self._inspector = inspector_pb2_grpc.InspectorStub(channel)
        self._observer = observer
        self._instance_id = ""
        self._newest = 0

    async def run(self) -> None:
        """Watch until cancelled, through any number of lost connections.

        Whoever closes the channel ends it too.
        """
        while True:
            try:
                await self._follow()
                trouble = "the device service ended the stream"
            except grpc.aio.AioRpcError as error:
                trouble = describe(error)
            self._observer.on_link(trouble)
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        await self._ask_for_state()
        # Begun before the history is asked for, so that none is between them.
        stream = self._inspector.WatchSteps(inspector_pb2.WatchStepsRequest())
        tasks: list[asyncio.Task[None]] = []
        try:
            self._tell(await list_steps(self._inspector))
            self._observer.on_link("")
            tasks += [
                asyncio.create_task(self._read(stream)),
                asyncio.create_task(self._poll()),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stream.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(
        self,
        stream: grpc.aio.UnaryStreamCall[
            inspector_pb2.WatchStepsRequest, inspector_pb2.WatchStepsResponse
        ],
    ) -> None:
        async for response in stream:
            match response.WhichOneof("event"):
                case "step":
                    self._tell([response.step])
                case "lost_steps":
                    self._observer.on_lost(response.lost_steps)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(STATE_SECONDS)
            await self._ask_for_state()

    async def _ask_for_state(self) -> None:
        state = await get_state(self._inspector)
        if state.instance_id != self._instance_id:
            self._instance_id = state.instance_id
            self._newest = 0
        self._observer.on_state(state)

    def _tell(self, steps: Sequence[inspector_pb2.StepRecord]) -> None:
        new = [step for step in steps if step.number > self._newest]
        if new:
            self._newest = new[-1].number
            self._observer.on_steps(new)


async def get_state(
    inspector: inspector_pb2_grpc.InspectorStub,
) -> inspector_pb2.GetStateResponse:
    """The state; AioRpcError when there is none within `ANSWER_SECONDS`."""
    request = inspector_pb2.GetStateRequest()
    answer: inspector_pb2.GetStateResponse = await inspector.GetState(
        request, timeout=ANSWER_SECONDS
    )
    return answer


async def list_steps(
    inspector: inspector_pb2_grpc.InspectorStub,
) -> Sequence[inspector_pb2.StepRecord]:
    """The newest steps, oldest first; AioRpcError as with `get_state`."""
    request = inspector_pb2.ListStepsRequest(limit=HISTORY)
    answer: inspector_pb2.ListStepsResponse = await inspector.ListSteps(
        request, timeout=ANSWER_SECONDS
    )
    return answer.steps


def describe(error: grpc.aio.AioRpcError) -> str:
    """A failed call in a few words; gRPC's own texts name no remedy."""
    failure = from_rpc_error(error)
    if failure.reason is Reason.DEVICE_LOST:
        return "cannot connect"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {ANSWER_SECONDS:g} s"
    return failure.message

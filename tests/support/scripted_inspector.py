"""An Inspector whose steps happen when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from ttserve.v1 import inspector_pb2, inspector_pb2_grpc


class ScriptedInspector(inspector_pb2_grpc.InspectorServicer):
    """A device service whose steps happen when the test says so."""

    def __init__(self, instance_id: str = "one") -> None:
        self.instance_id = instance_id
        self.streams: set[asyncio.Queue[inspector_pb2.WatchStepsResponse]] = set()
        self.opened = 0
        self.steps: list[inspector_pb2.StepRecord] = []
        self.lanes: list[inspector_pb2.LaneState] = []

    def step(self, number: int, *rows: str) -> None:
        """A decode step; `rows` are the requests with a row in lane 0, in lane 1…"""
        record = inspector_pb2.StepRecord(
            number=number, phase=inspector_pb2.PHASE_DECODE, phase_reason="because"
        )
        for lane, request_id in enumerate(rows):
            record.lanes.add(lane=lane).rows.add(request_id=request_id, tokens=1)
        self.steps.append(record)
        self.send(inspector_pb2.WatchStepsResponse(step=record))

    def send(self, response: inspector_pb2.WatchStepsResponse) -> None:
        for stream in self.streams:
            stream.put_nowait(response)

    async def GetState(
        self, request: Any, context: Any
    ) -> inspector_pb2.GetStateResponse:
        return inspector_pb2.GetStateResponse(
            instance_id=self.instance_id,
            step_number=len(self.steps),
            lanes=self.lanes,
        )

    async def ListSteps(
        self, request: Any, context: Any
    ) -> inspector_pb2.ListStepsResponse:
        return inspector_pb2.ListStepsResponse(steps=self.steps[-request.limit :])

    async def WatchSteps(self, request: Any, context: Any) -> AsyncIterator[Any]:
        queue: asyncio.Queue[inspector_pb2.WatchStepsResponse] = asyncio.Queue()
        self.streams.add(queue)
        self.opened += 1
        try:
            while True:
                yield await queue.get()
        finally:
            self.streams.discard(queue)


class InspectedDevice:
    """The inspector on a port, to be stopped and started again."""

    def __init__(self) -> None:
        self.inspector = ScriptedInspector()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        inspector_pb2_grpc.add_InspectorServicer_to_server(self.inspector, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

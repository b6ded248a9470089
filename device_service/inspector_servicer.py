"""The Inspector service: shows what the engine does; may stop and step it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from device_service.codec.inspection import PHASES, lane_state, step_record
from device_service.codec.recording import encode
from device_service.handle import EngineHandle
from device_service.records import StepRecord
from device_service.rpc import Context, or_abort
from device_service.serving import Serving
from device_service.session import Session
from device_service.step_feed import Filter, StepFeed
from ttserve.errors import Reason, TTServeError, invalid_field
from ttserve.v1 import inspector_pb2, inspector_pb2_grpc

DEFAULT_STEPS = 20
MAX_LISTED_STEPS = 1000
MAX_RUN_STEPS = 10_000
MAX_LIST_BYTES = 3 << 20
"""Records beyond this do not fit a client with gRPC's default limit of 4 MiB."""

DUMP_BYTES = 3 << 16
"""Of one message of a recording: a multiple of three, so that Base64 can be joined."""

T = TypeVar("T")


class InspectorServicer(inspector_pb2_grpc.InspectorServicer):
    """ttserve.v1.Inspector over what the service can do at the moment."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._feed: StepFeed | None = None

    async def GetState(
        self, request: inspector_pb2.GetStateRequest, context: Context
    ) -> inspector_pb2.GetStateResponse:
        """Take a picture between two steps."""
        return await or_abort(context, self._state())

    async def ListSteps(
        self, request: inspector_pb2.ListStepsRequest, context: Context
    ) -> inspector_pb2.ListStepsResponse:
        """Return the newest recorded steps."""
        return await or_abort(context, self._list(request))

    async def WatchSteps(
        self, request: inspector_pb2.WatchStepsRequest, context: Context
    ) -> None:
        """Stream steps until the client leaves."""
        await or_abort(context, self._watch(request, context))

    async def DumpRecording(
        self, request: inspector_pb2.DumpRecordingRequest, context: Context
    ) -> None:
        """Stream what the flight recorder holds."""
        await or_abort(context, self._dump(context))

    async def Pause(
        self, request: inspector_pb2.PauseRequest, context: Context
    ) -> inspector_pb2.PauseResponse:
        """Stop before the next step."""
        number = await or_abort(context, self._change(lambda engine: engine.pause()))
        return inspector_pb2.PauseResponse(step_number=number)

    async def Step(
        self, request: inspector_pb2.StepRequest, context: Context
    ) -> inspector_pb2.StepResponse:
        """Run steps and stop again."""
        return await or_abort(context, self._step(request.count or 1))

    async def Resume(
        self, request: inspector_pb2.ResumeRequest, context: Context
    ) -> inspector_pb2.ResumeResponse:
        """Run again."""
        await or_abort(context, self._change(lambda engine: engine.resume()))
        return inspector_pb2.ResumeResponse()

    async def ResetPrefixCache(
        self, request: inspector_pb2.ResetPrefixCacheRequest, context: Context
    ) -> inspector_pb2.ResetPrefixCacheResponse:
        """Forget cached prefixes."""
        force = request.preempt_running
        reset = await or_abort(
            context,
            self._change(lambda e: e.reset_prefix_cache(preempt_running=force)),
        )
        return inspector_pb2.ResetPrefixCacheResponse(reset=reset)

    def end_watching(self, why: TTServeError) -> None:
        """The service goes away: end the streams of those who watch."""
        if self._feed is not None:
            self._feed.end(why)

    # -- looking -----------------------------------------------------------

    async def _state(self) -> inspector_pb2.GetStateResponse:
        running = self._serving.require_engine()
        engine = running.engine
        state = await running.answer(engine.snapshot())
        return inspector_pb2.GetStateResponse(
            instance_id=self._serving.instance_id,
            step_number=state.step_number,
            paused=state.paused,
            lanes=map(lane_state, state.lanes),
            sessions=map(session_state, self._serving.sessions.values()),
            steps_in_flight=state.steps_in_flight,
            grammars=state.grammars,
            engine_silence_ms=int(engine.silence_seconds() * 1000),
            served_names=self._serving.require_model().description.served_names,
            uptime_seconds=self._serving.uptime_seconds,
        )

    async def _list(
        self, request: inspector_pb2.ListStepsRequest
    ) -> inspector_pb2.ListStepsResponse:
        limit = request.limit or DEFAULT_STEPS
        if limit > MAX_LISTED_STEPS:
            raise invalid_field("limit", f"limit must be at most {MAX_LISTED_STEPS}")
        wanted = step_filter(request.filter)
        steps = self._serving.require_engine().engine.step_log
        found = [record for record in steps.newest(WHOLE_RING) if wanted(record)]
        return inspector_pb2.ListStepsResponse(steps=newest_that_fit(found[-limit:]))

    async def _watch(
        self, request: inspector_pb2.WatchStepsRequest, context: Context
    ) -> None:
        feed = self._step_feed()
        most = self._serving.options.max_watchers
        if len(feed) >= most:
            raise TTServeError(Reason.QUEUE_FULL, f"{most} watch the steps already")
        watcher = feed.join(step_filter(request.filter))
        try:
            while True:
                lost, record = await watcher.take()
                if lost:
                    await context.write(
                        inspector_pb2.WatchStepsResponse(lost_steps=lost)
                    )
                await context.write(
                    inspector_pb2.WatchStepsResponse(step=step_record(record))
                )
        finally:
            feed.leave(watcher)

    async def _dump(self, context: Context) -> None:
        engine = self._serving.require_engine().engine
        recording = engine.recording("rpc")
        if recording is None:
            raise TTServeError(Reason.NOT_READY, "there is nothing to record yet")
        data = await asyncio.to_thread(encode, recording)
        for begin in range(0, len(data), DUMP_BYTES):
            piece = data[begin : begin + DUMP_BYTES]
            await context.write(inspector_pb2.DumpRecordingResponse(data=piece))

    def _step_feed(self) -> StepFeed:
        engine = self._serving.require_engine().engine
        if self._feed is None:
            self._feed = StepFeed(engine.step_log)
        return self._feed

    # -- changing ----------------------------------------------------------

    async def _step(self, count: int) -> inspector_pb2.StepResponse:
        if count > MAX_RUN_STEPS:
            raise invalid_field("count", f"count must be at most {MAX_RUN_STEPS}")
        await self._change(lambda engine: engine.pause())
        records = await self._change(lambda engine: engine.run_steps(count))
        return inspector_pb2.StepResponse(
            steps=newest_that_fit(records), steps_run=len(records)
        )

    async def _change(self, act: Callable[[EngineHandle], Future[T]]) -> T:
        if not self._serving.options.step_control:
            raise TTServeError(
                Reason.STEP_CONTROL_DISABLED,
                "start the device service with --enable-step-control for this",
            )
        running = self._serving.require_engine()
        return await running.answer(act(running.engine))


WHOLE_RING = 1 << 31


def step_filter(message: inspector_pb2.StepFilter) -> Filter:
    """What a StepFilter chooses; every field that is set must match."""
    phases = {number: phase for phase, number in PHASES.items()}
    if message.phase not in (inspector_pb2.PHASE_UNSPECIFIED, *phases):
        raise invalid_field("filter.phase", f"phase {message.phase} is not known")
    phase = phases.get(message.phase)
    lane = message.lane if message.HasField("lane") else None
    request_id = message.request_id

    def wanted(record: StepRecord) -> bool:
        if phase is not None and record.phase is not phase:
            return False
        rows = [
            row
            for entry in record.lanes
            if lane is None or entry.lane == lane
            for row in entry.rows
        ]
        if lane is not None and not rows:
            return False
        return not request_id or any(row.request_id == request_id for row in rows)

    return wanted


def newest_that_fit(
    records: Iterable[StepRecord],
) -> list[inspector_pb2.StepRecord]:
    """As many of the newest records as fit a message, oldest first."""
    room = MAX_LIST_BYTES
    messages: list[inspector_pb2.StepRecord] = []
    for record in reversed(list(records)):
        message = step_record(record)
        room -= message.ByteSize() + 8
        if room < 0:
            break
        messages.append(message)
    return messages[::-1]


def session_state(session: Session) -> inspector_pb2.SessionState:
    """One attached frontend, as it is."""
    return inspector_pb2.SessionState(
        session_number=session.number,
        frontend_name=session.frontend_name,
        peer=session.peer,
        live_requests=session.live_requests,
        merged_steps=session.merged_steps,
        age_seconds=session.age_seconds,
    )

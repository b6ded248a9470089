"""A device service without a model: it speaks the protocol and does as it is told.

It runs on a thread of its own, so that tests of a frontend can kill it, stall it
and bring it back. All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support import byte_model
from tests.support.fake_script import Reply
from ttserve.errors import Reason, TTServeError
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.status import to_grpc_status, to_status
from ttserve.v1 import device_pb2, model_pb2, step_pb2
from ttserve.v1.device_pb2_grpc import DeviceServicer, add_DeviceServicer_to_server
from ttserve.v1.generation_pb2 import Submission

T = TypeVar("T")

SERVED_NAME = "bytes"
MAX_SEQUENCE_TOKENS = 512


def model(**changes: Any) -> model_pb2.Model:
    """What the fake serves."""
    described = model_pb2.Model(
        served_names=[SERVED_NAME, "alias"],
        architecture=byte_model.ARCHITECTURE,
        max_sequence_tokens=MAX_SEQUENCE_TOKENS,
        vocab_size=byte_model.VOCAB_SIZE,
        dtype="float32",
        limits=model_pb2.RequestLimits(
            max_logprobs=20,
            max_queued_requests=128,
            max_submission_bytes=8 << 20,
            max_grammar_bytes=64 << 10,
        ),
        scheduling=model_pb2.SchedulingInfo(
            lanes=1, rows_per_lane=32, max_batched_tokens=512, policy="fcfs"
        ),
        kv_cache=model_pb2.KvCacheInfo(num_blocks=65, block_size=64),
        settings=model_pb2.SharedSettings(
            structured_output_backend="xgrammar", disable_any_whitespace=True
        ),
        generation_defaults_json=json.dumps({"temperature": 0.0}),
        fingerprint="0123456789abcdef",
        vllm_version=version("vllm"),
        eos_token_ids=[byte_model.IM_END],
    )
    described.MergeFrom(model_pb2.Model(**changes))
    return described


@dataclass
class Behaviour:
    """What the fake does next; tests change it as they go.

    `tokens_per_message` above 1 is a reader that lags behind. `stalled` is a
    stopped process: connections stay open and nothing is answered. `live_elsewhere`
    is what it says of other frontends' requests; None is a device service of minor 1,
    which says nothing.
    """

    step_seconds: float = 0.001
    tokens_per_message: int = 1
    first_token_seconds: float = 0.0
    stalled: bool = False
    serving: bool = True
    live_elsewhere: int | None = 0
    refusal: TTServeError | None = None
    session_refusal: TTServeError | None = None
    admit_at_most: int | None = None
    fail_after: tuple[int, TTServeError] | None = None


@dataclass
class _Live:
    submission: Submission
    reply: Reply
    accepted_at: float
    produced: int = 0


@dataclass
class Seen:
    """What reached the fake."""

    opened: list[device_pb2.OpenSession] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)
    aborts: list[tuple[int, int]] = field(default_factory=list)
    frames: int = 0
    half_closed: int = 0


class FakeDevice(DeviceServicer):
    """Starts with the context; `address` is where a frontend finds it."""

    def __init__(self, served: model_pb2.Model | None = None, port: int = 0) -> None:
        self.model = served or model()
        self.behaviour = Behaviour()
        self.seen = Seen()
        self._port = port
        self._refusal: TTServeError | None = None
        self._starts = itertools.count(1)
        self._instance = ""
        self._sessions: set[_Session] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: grpc.aio.Server | None = None

    def __enter__(self) -> FakeDevice:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def live_requests(self) -> int:
        """Requests that were submitted and have neither finished nor been aborted."""
        return sum(len(session.live) for session in list(self._sessions))

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def start(self) -> None:
        """Listen; the same port every time, another instance every time."""
        self._call(self._start()).result(10)

    def kill(self) -> None:
        """End without a word, as a killed process does."""
        self._call(self._kill()).result(10)

    def drain(self, grace_ms: int) -> None:
        """Announce the end to every frontend; those that half-close are let go."""
        self._refusal = TTServeError(Reason.DRAINING, "the fake is shutting down")
        draining = device_pb2.Draining(grace_ms=grace_ms)
        self._broadcast(device_pb2.AttachResponse(draining=draining))

    def _broadcast(self, response: device_pb2.AttachResponse) -> None:
        def put() -> None:
            for session in self._sessions:
                session.outbox.put_nowait(response)

        self._loop.call_soon_threadsafe(put)

    def _call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _start(self) -> None:
        self._instance = f"fake-{next(self._starts)}"
        self._refusal = None
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        )
        add_DeviceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(_Health(self), self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        await self._server.start()

    async def _kill(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    # The service

    async def GetModel(
        self, request: device_pb2.GetModelRequest, context: Any
    ) -> device_pb2.GetModelResponse:
        await self._refuse_if_told(context)
        return device_pb2.GetModelResponse(
            model=self.model,
            instance_id=self._instance,
            protocol_minor=PROTOCOL_MINOR,
        )

    async def GetTokenizer(
        self, request: device_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[device_pb2.GetTokenizerResponse]:
        for name, data in byte_model.files().items():
            yield device_pb2.GetTokenizerResponse(
                file=device_pb2.BundleFile(
                    name=name,
                    size=len(data),
                    sha256=hashlib.sha256(data).hexdigest(),
                )
            )
            for start in range(0, len(data), 1000):
                piece = data[start : start + 1000]
                yield device_pb2.GetTokenizerResponse(data=piece)

    async def Attach(
        self, requests: AsyncIterator[device_pb2.AttachRequest], context: Any
    ) -> AsyncIterator[device_pb2.AttachResponse]:
        await self._refuse_if_told(context)
        refusal = self.behaviour.session_refusal or self._refusal
        if refusal is not None:
            await context.abort_with_status(to_grpc_status(refusal))
        session = _Session(self)
        self._sessions.add(session)
        tasks = [
            asyncio.create_task(session.receive(requests)),
            asyncio.create_task(session.step_forever()),
        ]
        try:
            while (response := await session.outbox.get()) is not None:
                await self.wait_while_stalled()
                yield response
            if self._refusal is not None:
                await context.abort_with_status(to_grpc_status(self._refusal))
        finally:
            self._sessions.discard(session)
            for task in tasks:
                task.cancel()

    async def wait_while_stalled(self) -> None:
        while self.behaviour.stalled:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)

    def opened(self, hello: device_pb2.OpenSession) -> device_pb2.AttachResponse:
        self.seen.opened.append(hello)
        return device_pb2.AttachResponse(
            opened=device_pb2.SessionOpened(
                protocol_minor=PROTOCOL_MINOR,
                instance_id=self._instance,
                session_number=len(self.seen.opened),
                model=self.model,
                silence_limit_ms=5000,
            )
        )

    async def _refuse_if_told(self, context: Any) -> None:
        if not self.behaviour.serving:
            error = TTServeError(Reason.NOT_READY, "the model is being loaded")
            await context.abort_with_status(to_grpc_status(error))


class _Session:
    """One Attach stream: takes submissions, produces a message per step."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.outbox: asyncio.Queue[device_pb2.AttachResponse | None] = asyncio.Queue()
        self.live: dict[int, _Live] = {}
        self._groups: dict[int, list[Submission]] = {}
        self._frames: dict[int, bytes] = {}
        self._step = 0

    async def receive(self, requests: AsyncIterator[device_pb2.AttachRequest]) -> None:
        async for request in requests:
            await self._device.wait_while_stalled()
            match request.WhichOneof("event"):
                case "open":
                    self.outbox.put_nowait(self._device.opened(request.open))
                case "ping":
                    pong = device_pb2.Pong(
                        sequence=request.ping.sequence, engine_silence_ms=7
                    )
                    elsewhere = self._device.behaviour.live_elsewhere
                    if elsewhere is not None:
                        pong.live_requests = self._device.live_requests + elsewhere
                    self.outbox.put_nowait(device_pb2.AttachResponse(pong=pong))
                case "submit":
                    self._arrived(request.submit)
                case "frame":
                    self._frame(request.frame)
                case "abort":
                    for handle in request.abort.handles:
                        self.live.pop(handle, None)
                        abort = (handle, request.abort.cause)
                        self._device.seen.aborts.append(abort)
        self._device.seen.half_closed += 1
        self.outbox.put_nowait(None)

    async def step_forever(self) -> None:
        behaviour = self._device.behaviour
        while True:
            await asyncio.sleep(behaviour.step_seconds)
            await self._device.wait_while_stalled()
            if self.live:
                self.outbox.put_nowait(self._next_step())

    def _frame(self, frame: device_pb2.SubmissionFrame) -> None:
        self._device.seen.frames += 1
        data = self._frames.pop(frame.handle, b"") + frame.data
        if frame.last:
            self._arrived(Submission.FromString(data))
        else:
            self._frames[frame.handle] = data

    def _arrived(self, submission: Submission) -> None:
        self._device.seen.submissions.append(submission)
        if not submission.HasField("group"):
            self._decide([submission])
            return
        group = self._groups.setdefault(submission.group.group_id, [])
        group.append(submission)
        if len(group) == submission.group.count:
            self._decide(self._groups.pop(submission.group.group_id))

    def _decide(self, family: list[Submission]) -> None:
        """Admit all or none."""
        behaviour = self._device.behaviour
        most = behaviour.admit_at_most
        error = behaviour.refusal
        if most is not None and self._device.live_requests + len(family) > most:
            error = TTServeError(
                Reason.QUEUE_FULL, "the queue is full", retry_after=2.5
            )
        for submission in family:
            handle = submission.handle
            if error is None:
                self.live[handle] = _Live(
                    submission, Reply(submission), time.monotonic()
                )
                answer = device_pb2.AttachResponse(
                    accepted=device_pb2.SubmissionAccepted(handle=handle)
                )
            else:
                answer = device_pb2.AttachResponse(
                    rejected=device_pb2.SubmissionRejected(
                        handle=handle, status=to_status(error)
                    )
                )
            self.outbox.put_nowait(answer)

    def _next_step(self) -> device_pb2.AttachResponse:
        self._step += 1
        step = step_pb2.StepOutput(
            step_number=self._step, monotonic_seconds=time.monotonic()
        )
        for handle, request in list(self.live.items()):
            waited = time.monotonic() - request.accepted_at
            if waited >= self._device.behaviour.first_token_seconds:
                self._produce(handle, request, step)
        step.stats.running = len(self.live)
        step.stats.kv_usage = 0.25
        return device_pb2.AttachResponse(step=step)

    def _produce(self, handle: int, request: _Live, step: step_pb2.StepOutput) -> None:
        extra = step_pb2.RequestExtra(index=len(step.handles))
        if request.produced == 0:
            prompt = len(request.submission.prompt_token_ids)
            extra.prefill.prompt_tokens = prompt
            extra.prefill.cached_tokens = prompt // 2
            for kind in (1, 2):
                extra.events.add(kind=kind, monotonic_seconds=request.accepted_at)
        tokens: list[int] = []
        while len(tokens) < self._device.behaviour.tokens_per_message:
            token, logprobs, finish = request.reply.next()
            tokens.append(token)
            request.produced += 1
            if logprobs is not None:
                extra.logprobs.append(logprobs)
            finish = self._failure(request) or finish
            if finish is not None:
                extra.finish.CopyFrom(finish)
                del self.live[handle]
                break
        step.handles.append(handle)
        step.token_ids.extend(tokens)
        step.token_counts.append(len(tokens))
        step.extras.append(extra)

    def _failure(self, request: _Live) -> step_pb2.Finish | None:
        told = self._device.behaviour.fail_after
        if told is None or request.produced < told[0]:
            return None
        return step_pb2.Finish(
            reason=step_pb2.FINISH_REASON_ERROR, error=to_status(told[1])
        )


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING whenever the fake is told to be."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        return self._answer()

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            await self._device.wait_while_stalled()
            answer = self._answer()
            if answer != told:
                told = answer
                yield answer
            await asyncio.sleep(0.01)

    def _answer(self) -> health_pb2.HealthCheckResponse:
        serving = self._device.behaviour.serving
        return health_pb2.HealthCheckResponse(
            status=health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )

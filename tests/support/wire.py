"""A frontend's end of the protocol, and a device service to talk to.

`Service` is the real server over a scripted engine on a port of its own;
`AttachClient` speaks the protocol message by message, as a test wants it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import Message
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from device_service.admission import RequestFactory
from device_service.bundle import Bundle, BundledFile
from device_service.description import (
    Capabilities,
    KvCacheInfo,
    MeshInfo,
    ModelDescription,
    RequestLimits,
    SchedulingInfo,
    SharedSettings,
)
from device_service.server import DeviceServer
from device_service.serving import ServiceOptions
from tests.support.scripted_engine import ScriptedEngine
from ttserve.errors import TTServeError
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.status import from_rpc_error, from_status
from ttserve.v1 import (
    device_pb2,
    device_pb2_grpc,
    generation_pb2,
    inspector_pb2_grpc,
    step_pb2,
)

VLLM_VERSION = "0.30.0"

MODEL = ModelDescription(
    served_names=("tiny", "tiny-alias"),
    architecture="LlamaForCausalLM",
    max_sequence_tokens=512,
    vocab_size=1000,
    dtype="float32",
    limits=RequestLimits(max_queued_requests=8, max_submission_bytes=1 << 20),
    scheduling=SchedulingInfo(
        lanes=1,
        rows_per_lane=8,
        max_batched_tokens=256,
        policy="fcfs",
        chunked_prefill=True,
        async_decode=False,
    ),
    kv_cache=KvCacheInfo(num_blocks=65, block_size=16, prefix_caching=True),
    capabilities=Capabilities(chunked_prefill=True, max_device_top_k=32),
    settings=SharedSettings(),
    generation_defaults={"temperature": 0.5, "top_k": 7},
    eos_token_ids=(2, 3),
    fingerprint="f" * 64,
    mesh=MeshInfo(kind="sim", rows=1, columns=1),
    vllm_version=VLLM_VERSION,
)

BUNDLE = Bundle(
    (
        BundledFile.of("config.json", b"{}"),
        BundledFile.of("tokenizer.json", bytes(range(256)) * 2500),
    )
)


class ScriptedGrammars:
    """`GrammarKeeper.start` that answers when the test says so, or at once."""

    def __init__(self) -> None:
        self.held: list[tuple[str, Callable[[str, TTServeError | None], None]]] = []
        self.hold = False

    def start(
        self,
        request: Request,
        on_ready: Callable[[str, TTServeError | None], None],
    ) -> None:
        if self.hold:
            self.held.append((request.request_id, on_ready))
        else:
            on_ready(request.request_id, None)

    def bitmask(self, requests: Any) -> None:
        return None

    def accept(self, request: Request, token_id: int) -> bool:
        return True

    def release(self, request_id: str) -> None:
        pass

    @property
    def live(self) -> int:
        return len(self.held)


def no_grammar_checks(params: SamplingParams) -> None:
    """Takes every grammar as it is."""


class Service:
    """A device service on 127.0.0.1, and a channel to it."""

    def __init__(
        self,
        model: ModelDescription = MODEL,
        options: ServiceOptions | None = None,
        normalise: Callable[[SamplingParams], None] = no_grammar_checks,
    ) -> None:
        self.model = model
        self.engine = ScriptedEngine(rows=model.scheduling.total_rows)
        self.grammars = ScriptedGrammars()
        self.server = DeviceServer("127.0.0.1:0", options or ServiceOptions())
        self.factory = RequestFactory(model, None, normalise)
        self._channels: list[grpc.aio.Channel] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def start(self) -> None:
        await self.server.start()

    async def open(self) -> None:
        self.server.publish(self.model, BUNDLE)
        await self.server.open_for_requests(self.engine, self.factory, self.grammars)

    def channel(self, **options: int) -> grpc.aio.Channel:
        settings = {"grpc.max_receive_message_length": 4 << 20}
        settings |= {f"grpc.{name}": value for name, value in options.items()}
        channel = grpc.aio.insecure_channel(
            self.address,
            options=[
                *settings.items(),
                # A connection of its own, as another process would have.
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._channels.append(channel)
        return channel

    def device(self) -> device_pb2_grpc.DeviceAsyncStub:
        return device_pb2_grpc.DeviceStub(self.channel())  # type: ignore[return-value]

    def inspector(self) -> inspector_pb2_grpc.InspectorAsyncStub:
        return inspector_pb2_grpc.InspectorStub(self.channel())  # type: ignore[return-value]

    async def attach(self, name: str = "frontend", **options: int) -> AttachClient:
        """A frontend that has been opened."""
        client = AttachClient(self.channel(**options))
        await client.open(name)
        return client

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        await self.server.stop()


@contextlib.asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[Service]:
    """A service that serves, for as long as the block runs.

    Keywords replace parts of the description, its limits and its scheduling;
    `options` and `normalise` are the service's.
    """
    options = changes.pop("options", None)
    normalise = changes.pop("normalise", no_grammar_checks)
    service = Service(model_with(**changes), options, normalise)
    await service.start()
    await service.open()
    try:
        yield service
    finally:
        await service.close()


def model_with(**changes: Any) -> ModelDescription:
    """MODEL with some of its values replaced, wherever they stand."""
    model = MODEL
    for part in ("limits", "scheduling", "kv_cache", "settings"):
        holder = getattr(model, part)
        names = [name for name in changes if hasattr(holder, name)]
        held = {name: changes.pop(name) for name in names}
        model = replace(model, **{part: replace(holder, **held)})
    return replace(model, **changes)


def submission(handle: int = 1, **changes: Any) -> generation_pb2.Submission:
    """A well-formed submission; keywords replace parts of it."""
    message = generation_pb2.Submission(
        handle=handle,
        request_id=f"request-{handle}",
        prompt_token_ids=[5, 6, 7],
        sampling=generation_pb2.Sampling(
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
        ),
        stop=generation_pb2.StopRules(max_output_tokens=4),
    )
    for name, value in changes.items():
        field = message
        *path, last = name.split("__")
        for part in path:
            field = getattr(field, part)
        if value is None:
            field.ClearField(last)  # type: ignore[arg-type]
        elif isinstance(value, Message):
            getattr(field, last).CopyFrom(value)
        elif isinstance(value, list):
            field.ClearField(last)  # type: ignore[arg-type]
            getattr(field, last).extend(value)
        elif isinstance(value, dict):
            getattr(field, last).update(value)
        else:
            setattr(field, last, value)
    return message


class AttachClient:
    """One Attach stream, message by message."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        stub = device_pb2_grpc.DeviceStub(channel)
        self.call: Any = stub.Attach()
        self._handles = itertools.count(1)

    async def send(self, **event: Any) -> None:
        await self.call.write(device_pb2.AttachRequest(**event))

    async def open(
        self,
        name: str = "frontend",
        *,
        minor: int = PROTOCOL_MINOR,
        vllm_version: str = VLLM_VERSION,
    ) -> device_pb2.SessionOpened:
        """Introduce ourselves and return the answer."""
        await self.send(
            open=device_pb2.OpenSession(
                protocol_minor=minor, frontend_name=name, vllm_version=vllm_version
            )
        )
        return (await self.next("opened")).opened

    async def submit(self, handle: int | None = None, **changes: Any) -> int:
        """Submit, without waiting for the answer; the handle."""
        handle = next(self._handles) if handle is None else handle
        await self.send(submit=submission(handle, **changes))
        return handle

    async def frames(self, message: generation_pb2.Submission, size: int) -> None:
        """Submit in frames of `size` bytes."""
        data = message.SerializeToString()
        starts = range(0, len(data), size)
        for start in starts:
            await self.send(
                frame=device_pb2.SubmissionFrame(
                    handle=message.handle,
                    data=data[start : start + size],
                    last=start == starts[-1],
                )
            )

    async def abort(
        self,
        *handles: int,
        cause: device_pb2.AbortCause = device_pb2.ABORT_CAUSE_CLIENT,
    ) -> None:
        await self.send(abort=device_pb2.AbortHandles(handles=handles, cause=cause))

    async def ping(self, sequence: int = 0) -> None:
        await self.send(ping=device_pb2.Ping(sequence=sequence))

    async def read(self) -> device_pb2.AttachResponse:
        """The next message; EOFError at the end of the stream."""
        message = await asyncio.wait_for(self.call.read(), 10)
        if message is grpc.aio.EOF:
            raise EOFError
        assert isinstance(message, device_pb2.AttachResponse)
        return message

    async def next(self, event: str) -> device_pb2.AttachResponse:
        """The next message, which has to be of this kind."""
        message = await self.read()
        assert message.WhichOneof("event") == event, message
        return message

    async def rejection(self) -> tuple[int, TTServeError]:
        """The next message, a rejection: its handle and its error."""
        rejected = (await self.next("rejected")).rejected
        return rejected.handle, from_status(rejected.status)

    async def refusal(self) -> TTServeError:
        """The error that the whole stream ends with."""
        with contextlib.suppress(EOFError):
            while True:
                await self.read()
        raise AssertionError("the stream ended without an error")

    async def outputs(self, *handles: int) -> dict[int, Output]:
        """Read until these handles have finished; what they produced."""
        found = {handle: Output() for handle in handles}
        while not all(output.finish for output in found.values()):
            message = await self.read()
            if message.WhichOneof("event") == "step":
                unpack(message.step, found)
        return found

    async def ended(self) -> TTServeError | None:
        """Read to the end of the stream; None when that is OK."""
        try:
            while True:
                await self.read()
        except EOFError:
            return None
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)


class Output:
    """What one request produced."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[generation_pb2.TokenLogprobs] = []
        self.finish: step_pb2.Finish | None = None
        self.prefill: step_pb2.PrefillReport | None = None
        self.messages = 0


def unpack(step: step_pb2.StepOutput, found: dict[int, Output]) -> None:
    """Add a step's columns to what was found before."""
    counts = step.token_counts or [1] * len(step.handles)
    extras = {extra.index: extra for extra in step.extras}
    start = 0
    for index, (handle, count) in enumerate(zip(step.handles, counts, strict=True)):
        output = found.setdefault(handle, Output())
        assert output.finish is None, "output after the finish"
        output.token_ids += step.token_ids[start : start + count]
        output.messages += 1
        start += count
        extra = extras.get(index)
        if extra is not None:
            output.logprobs += extra.logprobs
            if extra.HasField("finish"):
                output.finish = extra.finish
            if extra.HasField("prefill"):
                output.prefill = extra.prefill
    assert start == len(step.token_ids)

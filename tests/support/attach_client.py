"""A frontend's end of the protocol, message by message, as a test wants it.

Imports neither vLLM nor the device service, so a test may start it as a process
of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
from google.protobuf.message import Message

from ttserve.errors import TTServeError
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.status import from_rpc_error, from_status
from ttserve.v1 import device_pb2, device_pb2_grpc, generation_pb2, step_pb2

VLLM_VERSION = "0.30.0"


def submission(handle: int = 1, /, **changes: Any) -> generation_pb2.Submission:
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
        field: Any = message
        *path, last = name.split("__")
        for part in path:
            field = getattr(field, part)
        if value is None:
            field.ClearField(last)
        elif isinstance(value, Message):
            getattr(field, last).CopyFrom(value)
        elif isinstance(value, list):
            field.ClearField(last)
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
        if not isinstance(message, device_pb2.AttachResponse):  # grpc.aio.EOF
            raise EOFError
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

    async def outputs(self, *handles: int) -> dict[int, Output]:
        """Read until these handles have finished; what they produced."""
        found = {handle: Output() for handle in handles}
        while not all(found[handle].finish for handle in handles):
            message = await self.read()
            if message.WhichOneof("event") == "step":
                unpack(message.step, found)
            assert message.rejected.handle not in handles, message
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

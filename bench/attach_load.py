"""Requests over gRPC, on one Attach stream, as a frontend sends them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TypeAlias

import grpc

from bench.measure import Arrival, Batch, Prompt
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.v1 import device_pb2, device_pb2_grpc, generation_pb2, step_pb2

VLLM_VERSION = "0.30.0"
PING_SECONDS = 0.5
Call: TypeAlias = (
    "grpc.aio.StreamStreamCall[device_pb2.AttachRequest, device_pb2.AttachResponse]"
)
OPTIONS = (("grpc.max_receive_message_length", 64 << 20),)


class AttachLoad:
    """Runs batches against one device service, each on a session of its own."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, prompts: Sequence[Prompt], max_tokens: int) -> Batch:
        """Submit all at once and read until the last has ended."""
        return asyncio.run(self._run(prompts, max_tokens))

    async def _run(self, prompts: Sequence[Prompt], max_tokens: int) -> Batch:
        async with grpc.aio.insecure_channel(self._address, OPTIONS) as channel:
            call = device_pb2_grpc.DeviceStub(channel).Attach()
            await call.write(_opening())
            await call.read()
            pinging = asyncio.create_task(_ping(call))
            try:
                began = time.monotonic()
                for handle, prompt in enumerate(prompts, start=1):
                    await call.write(_submit(handle, prompt, max_tokens))
                return await _read(call, len(prompts), began)
            finally:
                pinging.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await pinging
                call.cancel()


async def _read(call: Call, count: int, began: float) -> Batch:
    streams: list[list[Arrival]] = [[] for _ in range(count)]
    left = count
    while left:
        message = await call.read()
        if not isinstance(message, device_pb2.AttachResponse):
            raise RuntimeError(f"the stream ended: {await call.details()}")
        event = message.WhichOneof("event")
        if event == "rejected":
            raise RuntimeError(f"refused: {message.rejected.status.message}")
        if event == "step":
            left -= _take(message.step, streams, time.monotonic() - began)
    return Batch(tuple(tuple(stream) for stream in streams))


def _take(
    step: step_pb2.StepOutput, streams: list[list[Arrival]], moment: float
) -> int:
    """Note what a step brought; how many requests it ended."""
    counts = step.token_counts or [1] * len(step.handles)
    for handle, tokens in zip(step.handles, counts, strict=True):
        if tokens:
            streams[handle - 1].append((moment, tokens))
    return sum(extra.HasField("finish") for extra in step.extras)


async def _ping(call: Call) -> None:
    sequence = 0
    while True:
        await asyncio.sleep(PING_SECONDS)
        sequence += 1
        ping = device_pb2.Ping(sequence=sequence)
        await call.write(device_pb2.AttachRequest(ping=ping))


def _opening() -> device_pb2.AttachRequest:
    return device_pb2.AttachRequest(
        open=device_pb2.OpenSession(
            protocol_minor=PROTOCOL_MINOR,
            frontend_name="bench",
            vllm_version=VLLM_VERSION,
        )
    )


def _submit(handle: int, prompt: Prompt, max_tokens: int) -> device_pb2.AttachRequest:
    sampling = generation_pb2.Sampling(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
    )
    return device_pb2.AttachRequest(
        submit=generation_pb2.Submission(
            handle=handle,
            request_id=f"bench-{time.monotonic_ns()}-{handle}",
            prompt_token_ids=prompt,
            sampling=sampling,
            # No end-of-sequence id: it is ignored.
            stop=generation_pb2.StopRules(max_output_tokens=max_tokens),
        )
    )

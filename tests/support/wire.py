"""A device service to talk to: the real server over a scripted engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
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
from device_service.security import UNPROTECTED, GrpcSecurity
from device_service.server import DeviceServer
from device_service.serving import ServiceOptions
from tests.support.attach_client import VLLM_VERSION, AttachClient
from tests.support.scripted_engine import ScriptedEngine
from ttserve.errors import TTServeError
from ttserve.v1 import device_pb2_grpc, inspector_pb2_grpc

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


class Endpoint:
    """A device server on 127.0.0.1, and channels to it."""

    def __init__(
        self, options: ServiceOptions, security: GrpcSecurity = UNPROTECTED
    ) -> None:
        self.server = DeviceServer("127.0.0.1:0", options, security)
        self._channels: list[grpc.aio.Channel] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def start(self) -> None:
        await self.server.start()

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

    def device(self) -> Any:
        return device_pb2_grpc.DeviceStub(self.channel())

    def inspector(self) -> Any:
        return inspector_pb2_grpc.InspectorStub(self.channel())

    async def attach(self, name: str = "frontend", **options: int) -> AttachClient:
        """A frontend that has been opened."""
        client = AttachClient(self.channel(**options))
        await client.open(name)
        return client

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        await self.server.stop()


class Service(Endpoint):
    """A device service over a scripted engine."""

    def __init__(
        self,
        model: ModelDescription = MODEL,
        options: ServiceOptions | None = None,
        normalise: Callable[[SamplingParams], None] = no_grammar_checks,
        security: GrpcSecurity = UNPROTECTED,
    ) -> None:
        super().__init__(options or ServiceOptions(), security)
        self.model = model
        self.engine = ScriptedEngine(rows=model.scheduling.total_rows)
        self.grammars = ScriptedGrammars()
        self.factory = RequestFactory(model, None, normalise)

    async def open(self) -> None:
        self.server.publish(self.model, BUNDLE)
        await self.server.open_for_requests(self.engine, self.factory, self.grammars)


@contextlib.asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[Service]:
    """A service that serves, for as long as the block runs.

    Keywords replace parts of the description, its limits and its scheduling;
    `options`, `security` and `normalise` are the service's.
    """
    options = changes.pop("options", None)
    security = changes.pop("security", UNPROTECTED)
    normalise = changes.pop("normalise", no_grammar_checks)
    service = Service(model_with(**changes), options, normalise, security)
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

"""The gRPC server: assembled, bound early, opened when there is an engine.

    server = DeviceServer(listen, options)
    await server.start()                      # bound; everything is NOT_READY
    server.publish(description, bundle)       # GetModel, GetTokenizer answer
    await server.open_for_requests(engine, factory, grammars)    # SERVING
    error = await server.engine_ended()       # beside waiting for a signal
    await server.drain(grace_seconds)         # running requests may finish
    await server.stop()

All on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
from grpc_channelz.v1 import channelz, channelz_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from vllm.tokenizers import TokenizerLike

from device_service.admission import Admission, RequestFactory
from device_service.assembly import LaneEventSink
from device_service.bundle import Bundle
from device_service.description import ModelDescription
from device_service.device_servicer import DeviceServicer
from device_service.gateway import SERVICE as VLLM_ENGINE_SERVICE
from device_service.guard import Guard
from device_service.handle import EngineHandle
from device_service.inspector_servicer import InspectorServicer
from device_service.reflection import reflection_handlers
from device_service.rpc import Containment
from device_service.sampling.interface import GrammarKeeper
from device_service.security import UNPROTECTED, GrpcSecurity
from device_service.serving import Published, Running, ServiceOptions, Serving
from device_service.session import Session
from device_service.tls import ServerTls
from device_service.transport import CHANNEL_OPTIONS, MAX_CALLS
from ttserve.errors import Reason, StartupError, TTServeError
from ttserve.protocol import DEVICE_SERVICE, INSPECTOR_SERVICE
from ttserve.v1 import inspector_pb2_grpc

if TYPE_CHECKING:
    from device_service.gateway.servicer import VllmEngineServicer

logger = logging.getLogger(__name__)

HEALTH_SERVICE = "grpc.health.v1.Health"
CHANNELZ_SERVICE = "grpc.channelz.v1.Channelz"
HEALTH_NAMES = ("", DEVICE_SERVICE, INSPECTOR_SERVICE)
LIVE = "live"
"""SERVING whenever the event loop answers, for supervisors that kill who does not:
neither a start nor a drain is a reason to."""

CHECKER_THREADS = 4
# These follow the grace period; with the end of the mesh they take less than the
# two seconds in which a drained service is promised to be gone.
FLUSH_SECONDS = 0.8
"""How long a stream that we end may take to write what is queued for it."""

LAST_WRITES_SECONDS = 0.4
"""How long calls without a session may take to write their last message."""

HANDLERS_END_SECONDS = 0.1
"""How long cancelled handlers get to end.

grpc.aio does not wait for them, and prints a traceback for each one that the
end of the event loop cancels.
"""

ENGINE_STOP_SECONDS = 30.0
"""How long the step in flight may take when the engine is told to stop."""


class DeviceServer:
    """Owns the server, its worker threads and its sessions."""

    def __init__(
        self,
        listen: str,
        options: ServiceOptions,
        security: GrpcSecurity = UNPROTECTED,
    ) -> None:
        self._listen = listen
        self._security = security
        self._checkers = ThreadPoolExecutor(CHECKER_THREADS, "check")
        self._serving = Serving(uuid.uuid4().hex, options, self._checkers)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._inspector = InspectorServicer(self._serving)
        self._vllm_engine = _vllm_engine(self._serving) if options.vllm_grpc else None
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that was bound; 0 before, and on a unix socket."""
        return self._port

    @property
    def serving(self) -> Serving:
        """What it can do at the moment, for those who watch it."""
        return self._serving

    @property
    def on_block_events(self) -> LaneEventSink | None:
        """Takes what happens to cached blocks; None where nobody can ask for it."""
        return None if self._vllm_engine is None else self._vllm_engine.feed.post

    @property
    def instance_id(self) -> str:
        """Changes every time the device service starts."""
        return self._serving.instance_id

    async def start(self) -> None:
        """Bind and answer; nothing can be served yet.

        Raises StartupError where the address cannot be bound, or a certificate
        not be used.
        """
        server = grpc.aio.server(
            interceptors=(Guard(self._security.access), Containment()),
            options=CHANNEL_OPTIONS,
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        self._register(server)
        tls = self._security.tls
        credentials = ServerTls(tls).credentials() if tls else None
        try:
            self._port = (
                server.add_secure_port(self._listen, credentials)
                if credentials
                else server.add_insecure_port(self._listen)
            )
        except RuntimeError as error:
            raise StartupError(
                f"--listen {self._listen}: cannot listen: the address is in use, or "
                "not one of this machine"
            ) from error
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._health.set(LIVE, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server

    def publish(
        self,
        description: ModelDescription,
        bundle: Bundle,
        tokenizer: TokenizerLike | None = None,
    ) -> None:
        """Answer GetModel and GetTokenizer from now on."""
        self._serving.published = Published(description, bundle, tokenizer)

    async def open_for_requests(
        self, engine: EngineHandle, factory: RequestFactory, grammars: GrammarKeeper
    ) -> None:
        """Take requests from now on."""
        admission = Admission(factory, engine, grammars, self._serving.journal)
        self._serving.running = Running.of(engine, admission)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def engine_ended(self) -> BaseException | None:
        """Wait until the engine has ended by itself; the error that ended it.

        Everything in flight has been answered by then. When this returns, the
        answers are written, as far as frontends read them, and the service is
        NOT_SERVING.
        """
        running = self._serving.require_engine()
        error = await running.outcome()
        if error is not None:
            refusal = TTServeError(
                Reason.MESH_POISONED, "the device service cannot go on"
            )
            await self._refuse(refusal)
            await self._end_streams(refusal)
        return error

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new work, let running requests finish, end what is left.

        What is left after the grace ends with DRAINING, and so do the streams.
        Frontends half-close once they have read their last answers: what is only
        written when the port closes may be lost on the way.
        """
        refusal = TTServeError(
            Reason.DRAINING, "the device service is shutting down", retry_after=1.0
        )
        await self._refuse(refusal)
        running = self._serving.running
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        if running is not None:
            for session in self._serving.sessions.values():
                session.announce_draining(grace_seconds)
            left = await running.admission.wait_idle(grace_seconds)
            if left:
                logger.warning("%d requests end with DRAINING", left)
            running.engine.stop()
            await asyncio.wait({running.ended}, timeout=ENGINE_STOP_SECONDS)
        patience = min(deadline - loop.time(), self._serving.options.silence_limit)
        await self._end_streams(refusal, patience)

    async def stop(self) -> None:
        """Close the port and every stream that is still open."""
        if self._server is not None:
            await self._server.stop(grace=LAST_WRITES_SECONDS)
            self._server = None
            await asyncio.sleep(HANDLERS_END_SECONDS)
        self._checkers.shutdown(wait=False, cancel_futures=True)

    def _register(self, server: grpc.aio.Server) -> None:
        inspector_pb2_grpc.add_InspectorServicer_to_server(self._inspector, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        channelz_pb2_grpc.add_ChannelzServicer_to_server(
            channelz.aio.ChannelzServicer(),  # type: ignore[attr-defined]
            server,
        )
        services = [
            DEVICE_SERVICE,
            INSPECTOR_SERVICE,
            HEALTH_SERVICE,
            CHANNELZ_SERVICE,
        ]
        handlers = [DeviceServicer(self._serving).handler()]
        if self._vllm_engine is not None:
            services.append(VLLM_ENGINE_SERVICE)
            handlers.append(self._vllm_engine.handler())
        server.add_generic_rpc_handlers((*handlers, *reflection_handlers(services)))

    async def _refuse(self, refusal: TTServeError) -> None:
        """Take nothing new from now on."""
        self._serving.refusal = refusal
        if self._serving.running is not None:
            self._serving.running.admission.close(refusal)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _end_streams(self, reason: TTServeError, seconds: float = 0) -> None:
        """End the streams that frontends have not half-closed within `seconds`."""
        self._inspector.end_watching(reason)
        if self._vllm_engine is not None:
            self._vllm_engine.feed.end(reason)
        sessions = list(self._serving.sessions.values())
        await _closed(sessions, seconds)
        for session in sessions:
            session.end()
        await _closed(sessions, FLUSH_SECONDS)

    async def _set_health(
        self, status: health_pb2.HealthCheckResponse.ServingStatus
    ) -> None:
        for name in HEALTH_NAMES:
            await self._health.set(name, status)
        if self._vllm_engine is not None:
            await self._health.set(VLLM_ENGINE_SERVICE, status)


async def _closed(sessions: Iterable[Session], seconds: float) -> None:
    """Wait for the end of all of them, for `seconds` at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for session in sessions:
                await session.closed.wait()


def _vllm_engine(serving: Serving) -> VllmEngineServicer:
    try:
        from device_service.gateway.servicer import VllmEngineServicer
    except ImportError as error:  # its messages are in a package of their own
        raise StartupError(
            f"--enable-vllm-grpc: {error}; install ttserve[gateway]"
        ) from error
    return VllmEngineServicer(serving)

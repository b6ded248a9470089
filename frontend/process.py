"""One frontend process, from its socket to its last answer."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from frontend.config import NO_TLS, FrontendConfig
from frontend.device.bundle import private_directory
from frontend.device.connection import Connection, Listeners, ModelChanged
from frontend.device.fleet import Fleet, Member, MemberRequests, open_fleet
from frontend.drain import drain
from frontend.http.context import InFlight
from frontend.http.front_door import FrontDoor
from frontend.http.metrics_door import metrics_app
from frontend.http.server import HttpServer, bind_port, serving, serving_later, url_of
from frontend.lifecycle import Lifecycle, Phase
from frontend.metrics import FrontendMetrics
from frontend.startup import (
    StopWatch,
    build_engine,
    describe_model,
    load_vllm,
)
from ttserve.signals import StopRequest

if TYPE_CHECKING:
    from frontend.engine.build import Engine

logger = logging.getLogger(__name__)

MODEL_CHANGED_EXIT = 3
READY_POLL = 0.05


class Frontend:
    """Owns everything that lives as long as the process. To be made on its loop."""

    def __init__(self, config: FrontendConfig) -> None:
        self._config = config
        self._metrics = FrontendMetrics()
        self._lifecycle = Lifecycle(self._metrics)
        self._in_flight = InFlight()
        self._door = FrontDoor(self._lifecycle, config.http.api_keys)
        self._engine: Engine | None = None

    async def run(self, listener: socket.socket) -> int:
        """Serve until told to stop, or until only a new process helps.

        Returns the exit status; raises StartupError when it cannot serve.
        """
        stop = StopRequest()
        async with AsyncExitStack() as stack:
            http = self._config.http
            server = await stack.enter_async_context(
                serving_later(self._door, listener, http, self._accepting)
                if http.accept_when_ready
                else serving(self._door, listener, http)
            )
            logger.info("listening on %s", url_of(listener, http))
            await self._serve_metrics(stack)
            life = asyncio.create_task(self._live(server))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({life, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if life.done():
                    return life.result()
                self._lifecycle.phase = Phase.DRAINING
                client = self._engine.client if self._engine else None
                await drain(server, self._in_flight, client, http)
                return 0
            finally:
                life.cancel()
                stopped.cancel()
                await asyncio.gather(life, stopped, return_exceptions=True)

    async def _accepting(self) -> None:
        """Wait until connections shall be taken."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._config.http.accept_when_ready
        # Its reasons change in several places, and this is over soon.
        while self._lifecycle.reasons() and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(READY_POLL)

    async def _serve_metrics(self, stack: AsyncExitStack) -> None:
        http = self._config.http
        if http.metrics_port is not None:
            listener = bind_port(http.host, http.metrics_port, "--metrics-port")
            # Probes and Prometheus are not asked to trust a certificate for it.
            http = dataclasses.replace(http, tls=NO_TLS)
            app = metrics_app(self._lifecycle)
            server = await stack.enter_async_context(serving(app, listener, http))
            stack.callback(server.abort_connections)
            logger.info("metrics on %s/metrics", url_of(listener, http))

    async def _live(self, server: HttpServer) -> int:
        """Start, then stay connected; returns only when a new process is needed."""
        async with AsyncExitStack() as stack:
            directory = stack.enter_context(private_directory())
            fleet = await stack.enter_async_context(
                open_fleet(self._config.devices, self._config.device_security)
            )
            watch = StopWatch()
            lag = asyncio.create_task(self._metrics.watch_event_loop())
            stack.callback(lag.cancel)
            loading = asyncio.create_task(load_vllm())
            stack.callback(loading.cancel)
            self._lifecycle.wait_for("waiting for the device service")
            described = await describe_model(
                fleet, self._config, directory, self._lifecycle.wait_for
            )
            watch.lap("device service")
            self._lifecycle.wait_for("vLLM is being loaded")
            await loading
            watch.lap("rest of imports")
            engine = await build_engine(described, self._config, self._metrics)
            self._engine = engine
            watch.lap("engine")
            self._lifecycle.fleet = fleet
            await self._open_door(engine, fleet, stack, server)
            watch.lap("app")
            logger.info("started in %s", watch)
            try:
                await fleet.run(described.model, partial(self._connect, engine))
            except ModelChanged as changed:
                logger.error("%s", changed)
                return MODEL_CHANGED_EXIT
        raise AssertionError("a fleet ends by an exception only")

    def _connect(
        self, engine: Engine, member: Member, refused: Callable[[], None]
    ) -> tuple[Connection, MemberRequests]:
        """What a device service needs to be used by the engine."""
        requests = engine.client.add_device(str(member.address))
        metrics = self._metrics.add_device(member)
        connection = Connection(
            (str(member.address), member.channel),
            self._config.name,
            self._config.liveness,
            Listeners(requests, metrics, refused),
        )
        return connection, requests

    async def _open_door(
        self,
        engine: Engine,
        fleet: Fleet,
        stack: AsyncExitStack,
        server: HttpServer,
    ) -> None:
        """Let vLLM's app answer; its lifespan is that of the process."""
        from frontend.app import build_app, refresh_certificates
        from frontend.inspect.relay import Relays

        relays = Relays(fleet.channels)
        app = await build_app(
            engine, self._config.http, self._lifecycle, self._in_flight, relays
        )
        await stack.enter_async_context(app.router.lifespan_context(app))
        engine.llm.start()
        stack.callback(engine.llm.shutdown)
        stack.push_async_callback(engine.llm.send_spans)
        stack.callback(relays.end, "this frontend has ended")
        refresh_certificates(server, self._config.http.tls, stack)
        if self._lifecycle.phase is Phase.STARTING:
            self._lifecycle.phase = Phase.SERVING
        self._door.open(app)

"""/metrics of the device service: a registry and a small HTTP server of its own.

    scrape's thread -> event loop -> (a snapshot from the engine) -> text

The server is prometheus_client's, a thread per scrape; what it shows is read on
the event loop, where it lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

import ttserve
from device_service.metrics.picture import Picture, PictureCollector
from device_service.metrics.steps import StepMeter
from device_service.records import EngineState
from device_service.serving import Serving
from device_service.step_log import StepRing
from ttserve.errors import StartupError

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""How often records are counted when nobody scrapes."""

ENGINE_SECONDS = 1.0
"""How long a scrape waits for the engine: it answers between two steps."""

SCRAPE_SECONDS = 3.0
"""How long a scrape waits for the event loop."""


class Exporter:
    """Serves /metrics. Made and used on the event loop."""

    def __init__(self, serving: Serving, mesh: str) -> None:
        self._serving = serving
        self._mesh = mesh
        self._loop = asyncio.get_running_loop()
        # They would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        # First, because taking a picture counts what the meter has not counted.
        self._registry.register(PictureCollector(self._take))
        self._meter = StepMeter(self._registry)
        ProcessCollector(registry=self._registry)
        self._unwarmed: Callable[[], int] = lambda: 0
        self._server: WSGIServer | None = None
        self._draining: asyncio.Task[None] | None = None

    def start(self, host: str, port: int) -> int:
        """Bind and serve; the port, which the system chose if it was 0.

        Raises StartupError where the address cannot be bound.
        """
        try:
            self._server, _ = start_http_server(port, host, self._registry)
        except (OSError, OverflowError) as error:
            raise StartupError(
                f"--metrics-port {port}: cannot listen on {host}: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from error
        self._draining = asyncio.create_task(self._drain())
        return self._server.server_port

    def follow(self, steps: StepRing, unwarmed: Callable[[], int]) -> None:
        """Count an engine's steps, and the shapes that it was not warmed up for."""
        self._unwarmed = unwarmed
        steps.add_listener(self._meter.listener)

    async def stop(self) -> None:
        """Close the port."""
        if self._draining is not None:
            self._draining.cancel()
        if self._server is not None:
            # It looks up twice a second.
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()

    async def _drain(self) -> None:
        while True:
            await asyncio.sleep(DRAIN_SECONDS)
            self._meter.drain()

    def _take(self) -> Picture | None:
        """A picture for a scrape, from its thread."""
        looking = self._look()
        try:
            answer = asyncio.run_coroutine_threadsafe(looking, self._loop)
        except RuntimeError:  # the loop is closed
            looking.close()
            return None
        try:
            return answer.result(SCRAPE_SECONDS)
        except NoAnswer:
            answer.cancel()
            logger.warning("a scrape of /metrics got no answer from the event loop")
            return None

    async def _look(self) -> Picture:
        self._meter.drain()
        serving, journal = self._serving, self._serving.journal
        running = serving.running
        published = serving.published
        return Picture(
            info={
                "version": ttserve.__version__,
                "instance_id": serving.instance_id,
                "mesh": self._mesh,
                "model": published.description.served_names[0] if published else "",
                "vllm_version": published.description.vllm_version if published else "",
            },
            serving=running is not None and serving.refusal is None,
            uptime=serving.uptime_seconds,
            stages=dict(serving.stage_seconds),
            sessions=len(serving.sessions),
            merged_steps=serving.merged_steps,
            finished=dict(journal.finished),
            refused=dict(journal.refused),
            prefix_queries=journal.prefix_queries,
            prefix_hits=journal.prefix_hits,
            max_queued=published.description.limits.max_queued_requests
            if published
            else 0,
            unwarmed_shapes=self._unwarmed(),
            loop_age=running.engine.silence_seconds() if running else 0.0,
            engine=await self._engine_state(),
        )

    async def _engine_state(self) -> EngineState | None:
        """None when there is no engine, or a step takes longer than a scrape may."""
        running = self._serving.running
        if running is None or running.ended.done():
            return None
        answer = asyncio.wrap_future(running.engine.snapshot())
        waited: set[asyncio.Future[Any]] = {answer, running.ended}
        await asyncio.wait(
            waited, timeout=ENGINE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if not answer.done():
            answer.cancel()
            return None
        return answer.result()

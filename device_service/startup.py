"""The life of the device service, from the command line to the exit status.

    bind the port -> resolve -> publish -> open, load, allocate -> engine
    -> warm up -> SERVING -> (signal or engine's end) -> drain -> close

The event loop answers from the first step on; everything slow runs on the
device thread. What was opened is closed in the reverse order, once, whatever
ends the service: a signal at any moment, a failed start or a dead engine.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar
from vllm.tokenizers import TokenizerLike
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.utils.torch_utils import set_random_seed

from device_service.admission import RequestFactory
from device_service.assembly import EngineLimits, LaneEventSink, build_engine
from device_service.bundle import Bundle
from device_service.config import DeviceConfig
from device_service.data_parallel import plan_services
from device_service.describe import bundle_of, describe, load_tokenizer
from device_service.description import ModelDescription
from device_service.device import Device
from device_service.device_thread import DeviceThread
from device_service.effective import effective_configuration
from device_service.engine import Engine
from device_service.grammar import normalise_structured_outputs
from device_service.mesh.factory import make_mesh
from device_service.mesh.interface import Driver, Mesh
from device_service.mesh_check import check_mesh
from device_service.metrics.exporter import Exporter
from device_service.recording_files import RecordingFiles
from device_service.resolve import Resolved, resolve
from device_service.sampling.interface import HostSampling
from device_service.sampling_policy import host_sampling
from device_service.scheduling.interleave import InterleaveConfig
from device_service.security import exposure
from device_service.server import DeviceServer
from device_service.serving import ServiceOptions
from device_service.startup_checks import check_launch
from device_service.tracing import RequestTracer
from device_service.wording import one_line
from ttserve.service_plan import write_plan
from ttserve.signals import StopRequest

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread may keep the interpreter when another one waits.

With Python's own 5 ms, a wake-up of the event loop beside a busy engine waited
6.6 ms in one case of a hundred.
"""

STILL_SECONDS = 10.0
ENGINE_END_SECONDS = 30.0


async def run(config: DeviceConfig) -> int:
    """Serve until a signal comes or the engine dies; the exit status.

    Raises StartupError when serving cannot begin.
    """
    check_launch(config)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    torch.set_num_threads(config.threads)
    set_random_seed(config.engine["seed"])
    disable_progress_bar()  # stages say how long they take
    if config.plan is not None:
        # On this thread: a signal still ends the process at once.
        write_plan(config.plan, plan_services(config, logger.info))
        return 0
    # Before signals are taken care of: counting devices takes a second, and
    # there is nothing to put in order yet.
    mesh = make_mesh(config.mesh, config.mesh_options())
    stop = StopRequest()
    recordings = RecordingFiles(config.recording_dir)
    if config.check:
        await check_mesh(mesh)
        return 0
    endpoint = config.engine["otlp_traces_endpoint"]
    tracer = RequestTracer.to(endpoint) if endpoint else None
    options = ServiceOptions(
        silence_limit=config.heartbeat_timeout,
        step_control=config.enable_step_control,
        log_requests=config.engine["enable_log_requests"],
        vllm_grpc=config.enable_vllm_grpc,
        on_request_end=tracer.ended if tracer else None,
    )
    server = DeviceServer(str(config.listen), options, config.security)
    await server.start()
    logger.info("listening on %s:%d", config.listen.host, server.port)
    if warning := exposure(config.listen, config.security):
        logger.warning("%s", warning)
    exporter = Exporter(server.serving, config.mesh)
    service = _Service(config, server, mesh, exporter, recordings)
    try:
        if config.metrics_port is not None:
            port = exporter.start(config.metrics_host, config.metrics_port)
            logger.info("metrics on http://%s:%d/metrics", config.metrics_host, port)
        return await service.live(stop)
    finally:
        await service.close()
        await exporter.stop()
        await server.stop()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


class _Service:
    """One life. Event loop only."""

    def __init__(
        self,
        config: DeviceConfig,
        server: DeviceServer,
        mesh: Mesh,
        exporter: Exporter,
        recordings: RecordingFiles,
    ) -> None:
        self._config = config
        self._server = server
        self._mesh = mesh
        self._exporter = exporter
        self._recordings = recordings
        self._stage = partial(_stage, seconds=server.serving.stage_seconds)
        self._device = Device(mesh)
        self._thread = DeviceThread()
        self._engine: Engine | None = None

    async def live(self, stop: StopRequest) -> int:
        """Start, serve, end."""
        start = asyncio.create_task(self._start())
        if not await _before(stop, start):
            logger.info("stopped while starting")
            self._device.give_up()
            start.cancel()
            return 0
        ended = asyncio.create_task(self._server.engine_ended())
        if not await _before(stop, ended):
            logger.info("draining, up to %g s", self._config.shutdown_grace)
            await self._server.drain(self._config.shutdown_grace)
        error = ended.result() if ended.done() else None
        if error is None:
            return 0
        logger.error("the engine has ended: %s", one_line(error))
        await self._recordings.written()
        return 1

    async def close(self) -> None:
        """End the engine, then close what is open on the device.

        A start that was given up before the mesh opened leaves nothing to
        close, and is not waited for.
        """
        if self._engine is not None:
            self._engine.stop()
            await self._thread.call(self._engine.join, ENGINE_END_SECONDS)
        if self._device.touched:
            async with self._stage("closing the mesh"):
                await self._thread.call(self._device.close)

    async def _start(self) -> None:
        began = time.monotonic()
        call = self._thread.call
        async with self._stage("reading the model's configuration"):
            resolved = await call(resolve, self._config, self._mesh, logger.info)
            description, bundle, tokenizer = await call(_describe, resolved, self._mesh)
        logger.info("%s", effective_configuration(resolved, description))
        self._server.publish(description, bundle, tokenizer)
        async with self._stage("opening the mesh"):
            await call(self._device.open, resolved.capabilities.fabric_config)
        async with self._stage("loading the weights"):
            loaded = await call(self._device.load, resolved)
        async with self._stage("allocating the KV cache"):
            driver = await call(self._device.allocate, loaded, resolved)
        if self._config.tt.enable_model_warmup:
            async with self._stage("warming up"):
                await call(self._device.warm_up)
        else:
            logger.warning(
                "tt.enable_model_warmup is off: requests pay for the first step of "
                "every shape"
            )
        async with self._stage("preparing sampling and grammars"):
            sampling = await call(host_sampling, resolved, self._mesh, driver)
        told = self._server.on_block_events
        engine = await call(_engine, resolved, driver, sampling, told)
        await call(freeze_gc_heap)
        await self._open(engine, resolved, description, sampling)
        logger.info("serving, after %.1f s", time.monotonic() - began)

    async def _open(
        self,
        engine: Engine,
        resolved: Resolved,
        description: ModelDescription,
        sampling: HostSampling,
    ) -> None:
        """Start the engine and let requests in."""
        reasoning = resolved.vllm_config.reasoning_config
        thinking_budgets = reasoning is not None and reasoning.enabled
        factory = RequestFactory(
            model=description,
            block_hasher=engine.block_hasher,
            normalise_grammar=normalise_structured_outputs,
            thinking_budgets=thinking_budgets,
        )
        engine.start()
        self._engine = engine
        self._recordings.follow(engine)
        if self._config.metrics_port is not None:
            self._exporter.follow(engine.step_log, self._device.unwarmed_shapes)
        await self._server.open_for_requests(engine, factory, sampling.grammars)


def _describe(
    resolved: Resolved, mesh: Mesh
) -> tuple[ModelDescription, Bundle, TokenizerLike]:
    bundle = bundle_of(resolved)
    tokenizer = load_tokenizer(resolved.vllm_config.model_config)
    return describe(resolved, mesh, bundle.sha256), bundle, tokenizer


def _engine(
    resolved: Resolved,
    driver: Driver,
    sampling: HostSampling,
    on_block_events: LaneEventSink | None,
) -> Engine:
    tt = resolved.config.tt
    limits = EngineLimits(
        lanes=resolved.shape.lanes,
        rows=resolved.shape.rows_per_lane,
        num_blocks=resolved.pool.num_blocks,
        step_ring=resolved.config.step_ring,
        kv_groups=resolved.kv_plan.groups,
    )
    interleave = InterleaveConfig(
        enabled=tt.decode_interleave_enabled,
        prefill_steps=tt.decode_interleave_prefill_steps,
        decode_steps=tt.decode_interleave_decode_steps,
    )
    return build_engine(
        resolved.vllm_config,
        limits,
        interleave,
        driver,
        sampling,
        on_block_events=on_block_events,
    )


async def _before(stop: StopRequest, work: asyncio.Task[Any]) -> bool:
    """Wait for work or for a signal; False when the signal came first.

    The work goes on then: whoever called decides about it.
    """
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if work.done():
        await work
    return work.done()


@asynccontextmanager
async def _stage(name: str, seconds: dict[str, float]) -> AsyncIterator[None]:
    """Say how long something took, and every ten seconds that it goes on.

    What it took is put into `seconds`.
    """
    began = time.monotonic()

    async def remind() -> None:
        while True:
            await asyncio.sleep(STILL_SECONDS)
            logger.info("still %s, %.0f s", name, time.monotonic() - began)

    reminder = asyncio.create_task(remind())
    try:
        yield
    finally:
        reminder.cancel()
    seconds[name] = time.monotonic() - began
    logger.info("%s: %.1f s", name, seconds[name])

"""The device service's engine without its server: same start, same thread, no gRPC.

Built from the command line of `tt-device-service` by the parts that the service
itself is built from, so that what is measured here and there differs by the
wire alone.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.request import Request

from bench.measure import Arrival, Prompt
from device_service.assembly import EngineLimits, build_engine
from device_service.config import parse_args
from device_service.device import Device
from device_service.engine import Engine
from device_service.mesh.factory import make_mesh
from device_service.mesh.interface import Driver, Mesh
from device_service.records import Admitted, StepRecord, StepUpdates
from device_service.resolve import Resolved, resolve
from device_service.sampling.interface import HostSampling, TokenSampler
from device_service.sampling_policy import host_sampling
from device_service.scheduling.interleave import InterleaveConfig
from device_service.startup import SWITCH_INTERVAL_SECONDS

BATCH_SECONDS = 600.0


class Recorder:
    """The session of one batch: notes when tokens come. Also the engine's sink."""

    def __init__(self, handles: Sequence[int]) -> None:
        self.began = time.monotonic()
        self.finished = threading.Event()
        self._streams: dict[int, list[Arrival]] = {handle: [] for handle in handles}
        self._left = len(self._streams)

    @property
    def streams(self) -> list[list[Arrival]]:
        """Arrivals per request, in the order of submission."""
        return list(self._streams.values())

    def deliver(self, updates: StepUpdates) -> None:
        """Take a step's updates. Engine thread."""
        now = time.monotonic() - self.began
        for update in updates.updates:
            if update.token_ids:
                self._streams[update.handle].append((now, len(update.token_ids)))
            if update.finish is not None:
                self._left -= 1
        if not self._left:
            self.finished.set()


@dataclass(frozen=True, slots=True)
class Seams:
    """Where a benchmark may stand between the engine and its parts."""

    driver: Callable[[Driver], Driver] = lambda driver: driver
    sampler: Callable[[TokenSampler], TokenSampler] = lambda sampler: sampler
    recorder: Callable[[Sequence[int]], Recorder] = Recorder
    clock: Callable[[], float] = time.monotonic


class InProcessEngine:
    """A running engine, and batches for it."""

    def __init__(self, argv: Sequence[str], seams: Seams | None = None) -> None:
        """`argv` is a command line of `tt-device-service`."""
        self._seams = seams or Seams()
        config = parse_args(argv)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        torch.set_num_threads(config.threads)
        mesh = make_mesh(
            config.mesh,
            {"mesh_device": config.environment.mesh_device, "sim": config.tt.sim},
        )
        self.resolved = resolve(config, mesh, lambda _: None)
        self._mesh = mesh
        self._device = Device(mesh)
        self._handles = itertools.count(1)
        self.engine = self._start()

    def __enter__(self) -> InProcessEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.engine.stop()
        self.engine.join(timeout=5)
        self._device.close()

    @property
    def records(self) -> list[StepRecord]:
        """The newest steps, oldest first."""
        return self.engine.step_log.newest(self.resolved.config.step_ring)

    def run(self, prompts: Sequence[Prompt], max_tokens: int) -> list[list[Arrival]]:
        """Submit all at once, greedy, and wait for the last token."""
        handles = list(itertools.islice(self._handles, len(prompts)))
        requests = [
            self._request(handle, prompt, max_tokens)
            for handle, prompt in zip(handles, prompts, strict=True)
        ]
        recorder = self._seams.recorder(handles)
        self.engine.submit(
            [
                Admitted(
                    request=request,
                    sink=recorder,
                    session_number=1,
                    handle=handle,
                    external_request_id="",
                    top_logprobs=None,
                    awaits_grammar=False,
                )
                for handle, request in zip(handles, requests, strict=True)
            ]
        )
        if not recorder.finished.wait(BATCH_SECONDS):
            raise TimeoutError(f"a batch took longer than {BATCH_SECONDS:.0f} s")
        return recorder.streams

    def _request(self, handle: int, prompt: Prompt, max_tokens: int) -> Request:
        return Request(
            request_id=f"bench-{handle}",
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(
                temperature=0.0, max_tokens=max_tokens, ignore_eos=True
            ),
            pooling_params=None,
        )

    def _start(self) -> Engine:
        """As `device_service.startup` does it."""
        resolved, seams = self.resolved, self._seams
        self._device.open()
        driver = self._device.allocate(self._device.load(resolved), resolved)
        if resolved.config.tt.enable_model_warmup:
            self._device.warm_up()
        engine = build_engine(
            resolved.vllm_config,
            EngineLimits(
                lanes=resolved.shape.lanes,
                rows=resolved.shape.rows_per_lane,
                num_blocks=resolved.pool.num_blocks,
                step_ring=resolved.config.step_ring,
                kv_groups=resolved.kv_plan.groups,
            ),
            InterleaveConfig(),
            seams.driver(driver),
            _host_sampling(resolved, self._mesh, driver, seams),
            clock=seams.clock,
        )
        freeze_gc_heap()
        engine.start()
        return engine


def _host_sampling(
    resolved: Resolved, mesh: Mesh, driver: Driver, seams: Seams
) -> HostSampling:
    sampling = host_sampling(resolved, mesh, driver)
    return replace(sampling, sampler=seams.sampler(sampling.sampler))

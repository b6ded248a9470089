"""vLLM's engine client over sessions with device services.

`AsyncLLM` submits and aborts through it, and its output handler takes outputs
from it. The handler ends for good on an exception, so `get_output_async` never
raises: what a lost session held goes elsewhere or fails. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from vllm.tasks import SupportedTask
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
)
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.stats import SchedulerStats

from frontend.codec.outputs import DecodedStep, Decoding, Failure
from frontend.codec.submission import Envelope, encode_submission
from frontend.engine.device_requests import DeviceRequests
from frontend.engine.devices import Devices
from frontend.engine.gauges import SchedulerGauges
from frontend.engine.requests import OpenRequest, Placement
from ttserve.errors import Reason, TTServeError
from ttserve.v1 import device_pb2
from ttserve.v1.generation_pb2 import Submission
from ttserve.v1.model_pb2 import Model

logger = logging.getLogger(__name__)

TASKS: tuple[SupportedTask, ...] = ("generate",)

LONG_PROMPT_TOKENS = 16384
"""Encoding more takes milliseconds and is done outside of the event loop."""


@dataclass
class Resources:
    """What AsyncLLM looks at; a lost device service does not end the engine."""

    engine_dead: bool = False


_LOST_MEANWHILE = TTServeError(
    Reason.DEVICE_LOST, "no device service is left", retry_after=1.0
)


class RequestCounter(Protocol):
    """Who counts what becomes of requests."""

    def failed(self, reason: Reason) -> None:
        """One was refused or failed."""

    def moved(self, device: str, reason: Reason) -> None:
        """One, or all children of one, left a device service and run elsewhere."""


class GrpcEngineClient(EngineCoreClient):
    """Routes requests to device services, and moves or fails what one loses.

    `on_failure` is told of every failed request, in the order of the outputs,
    before `get_output_async` returns the outputs that end it.
    """

    engine_ranks_managed = (0,)

    def __init__(self, model: Model, counter: RequestCounter) -> None:
        self.resources = Resources()
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self._model = model
        self._counter = counter
        self._closed_by: TTServeError | None = None
        self._devices = Devices(model)
        self._by_id: dict[str, OpenRequest] = {}
        self._gauges = SchedulerGauges()
        self._steps: asyncio.Queue[DecodedStep] = asyncio.Queue()

    def __len__(self) -> int:
        """Open requests."""
        return len(self._by_id)

    def add_device(self, name: str) -> DeviceRequests:
        """Another device service, for its connection; `name` is not in use."""
        return self._devices.add(name, self)

    # -- what RemoteLLM asks -------------------------------------------------

    @property
    def refusal(self) -> TTServeError | None:
        """Why nothing can be submitted now; None if something can."""
        return self._closed_by or self._devices.refusal

    async def submit(
        self,
        request: EngineCoreRequest,
        external_request_id: str,
        placement: Placement,
    ) -> asyncio.Future[None]:
        """Send a request; the future is done when it was admitted or refused.

        Children of one request share a placement. Raises TTServeError for a request
        that must not be sent, and when no device service takes any.
        """
        if self.refusal is not None:
            raise self.refusal
        opened = OpenRequest.open(request.request_id, placement)
        self._by_id[opened.request_id] = opened
        envelope = Envelope(external_request_id, placement.group)
        try:
            if len(request.prompt_token_ids or ()) < LONG_PROMPT_TOKENS:
                message = encode_submission(request, envelope, self._model)
            else:
                message = await asyncio.to_thread(
                    encode_submission, request, envelope, self._model
                )
        except BaseException:
            self._close(opened)
            raise
        if opened.request_id in self._by_id:  # not aborted while we were encoding
            opened.submission = message
            self._send(opened, message)
        return opened.admission

    def abort(self, request_ids: Iterable[str], cause: device_pb2.AbortCause) -> None:
        """Stop requests; what still comes for them is ignored."""
        found = [self._by_id[name] for name in request_ids if name in self._by_id]
        for request in found:
            self._close(request)
        for device, requests in _by_device(found).items():
            device.abort(requests, cause)
            if len(device) == 0:
                # No step tells us that our last request is gone: nothing of it runs.
                self._put_stats(self._gauges.idle(device.name))

    def refuse(self, error: TTServeError) -> None:
        """Take nothing new from now on; what runs goes on."""
        self._closed_by = error

    def fail_everything(self, error: TTServeError) -> None:
        """End what is open, here and in the device services."""
        requests = list(self._by_id.values())
        by_device = _by_device(requests)
        for device, those in by_device.items():
            device.abort(those, device_pb2.ABORT_CAUSE_SHUTDOWN)
        self._fail(requests, error)
        for device in by_device:
            self._put_stats(self._gauges.idle(device.name))

    # -- what the device services say (Owner) --------------------------------

    def stepped(
        self, device: DeviceRequests, step: DecodedStep, ended: list[OpenRequest]
    ) -> None:
        """Hand outputs on, with gauges over all device services."""
        for request in ended:
            self._close(request)
        stats = step.outputs.scheduler_stats
        if stats is not None:
            step.outputs.scheduler_stats = self._gauges.merge(device.name, stats)
        self._steps.put_nowait(step)

    def lost(
        self, device: DeviceRequests, requests: list[OpenRequest], error: TTServeError
    ) -> None:
        """Let them run elsewhere where that is allowed and possible, else fail them."""
        for placement in dict.fromkeys(request.placement for request in requests):
            target = self._devices.choose_another(placement, error)
            if target is not None:
                self._move(placement, device, target, error)
            else:
                those = [r for r in requests if r.placement is placement]
                self._fail(those, error)

    def session_lost(self, device: DeviceRequests) -> None:
        """Its prefix cache may be gone, and its gauges are."""
        self._devices.forget_prefixes(device.name)
        stats = self._gauges.forget(device.name)
        if stats is not None:
            self._put_stats(stats)

    def closed(self, device: DeviceRequests) -> None:
        """It has left."""
        self._devices.remove(device.name)

    # -- what AsyncLLM asks --------------------------------------------------

    async def get_output_async(self) -> EngineCoreOutputs:
        """The next step's outputs; tells of its failures first."""
        step = await self._steps.get()
        for failure in step.failures:
            self._counter.failed(failure.error.reason)
            self.on_failure(failure)
        return step.outputs

    async def get_supported_tasks_async(self) -> tuple[SupportedTask, ...]:
        """Text generation and nothing else."""
        return TASKS

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Only the output handler calls this: a stop string has matched."""
        self.abort(request_ids, device_pb2.ABORT_CAUSE_STOP_STRING)

    def dp_engines_running(self) -> bool:
        """There are no data-parallel engines behind this client."""
        return False

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing to do: whoever made the connection ends it."""

    # -- inside --------------------------------------------------------------

    def _close(self, request: OpenRequest) -> None:
        if self._by_id.pop(request.request_id, None) is not None:
            request.placement.requests.remove(request)

    def _send(self, request: OpenRequest, message: Submission) -> None:
        placement = request.placement
        if placement.device is None:
            placement.device = self._devices.choose(message)
        device = placement.device
        if device is None:  # the last one was lost while we were encoding
            self._fail([request], _LOST_MEANWHILE)
        elif device.unavailable is not None:
            self.lost(device, [request], device.unavailable)
        else:
            device.submit(request)

    def _move(
        self,
        placement: Placement,
        device: DeviceRequests,
        target: DeviceRequests,
        error: TTServeError,
    ) -> None:
        """Send what was sent to `device` once more, elsewhere."""
        logger.info(
            "request %s goes from %s to %s: %s",
            placement.requests[0].request_id,
            device.name,
            target.name,
            error.message,
        )
        self._counter.moved(device.name, error.reason)
        sent = [r for r in placement.requests if r.submission is not None]
        device.abort(sent, device_pb2.ABORT_CAUSE_CLIENT)
        placement.device = target
        placement.movable = False
        for request in sent:
            request.decoding = Decoding(request.request_id)
            target.submit(request)

    def _fail(self, requests: list[OpenRequest], error: TTServeError) -> None:
        """Let them end with an error; who was not admitted hears of it at once."""
        outputs, failures = [], []
        for request in requests:
            self._close(request)
            if request.admission.done():
                name = request.request_id
                outputs.append(
                    EngineCoreOutput(name, [], finish_reason=FinishReason.ERROR)
                )
                failures.append(Failure(name, error))
            else:
                self._counter.failed(error.reason)
                request.admission.set_exception(error)
        if failures:
            self._steps.put_nowait(
                DecodedStep(EngineCoreOutputs(outputs=outputs), failures)
            )

    def _put_stats(self, stats: SchedulerStats) -> None:
        outputs = EngineCoreOutputs(scheduler_stats=stats)
        self._steps.put_nowait(DecodedStep(outputs, []))


def _by_device(
    requests: Iterable[OpenRequest],
) -> dict[DeviceRequests, list[OpenRequest]]:
    found: dict[DeviceRequests, list[OpenRequest]] = {}
    for request in requests:
        if request.placement.device is not None:
            found.setdefault(request.placement.device, []).append(request)
    return found

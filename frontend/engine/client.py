"""vLLM's engine client over a session with a device service.

`AsyncLLM` submits and aborts through it, and its output handler takes outputs
from it. The handler ends for good on an exception, so `get_output_async` never
raises: a lost session becomes failed requests. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vllm.tasks import SupportedTask
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
)
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.stats import SchedulerStats

from frontend.codec.outputs import DecodedStep, Failure, decode_step
from frontend.codec.submission import Envelope, encode_submission
from frontend.device.session import Session
from frontend.engine.requests import OpenRequests
from ttserve.errors import Reason, TTServeError
from ttserve.status import from_status
from ttserve.v1 import device_pb2, step_pb2
from ttserve.v1.generation_pb2 import SubmissionGroup
from ttserve.v1.model_pb2 import Model

logger = logging.getLogger(__name__)

TASKS: tuple[SupportedTask, ...] = ("generate",)

LONG_PROMPT_TOKENS = 16384
"""Encoding more takes milliseconds and is done outside of the event loop."""


@dataclass
class Resources:
    """What AsyncLLM looks at; a lost device service does not end the engine."""

    engine_dead: bool = False


class GrpcEngineClient(EngineCoreClient):
    """Submits to whatever session is ready, and fails what a lost one held.

    `count` is told the reason of every refusal and failure. `on_failure` is told
    of every failed request, in the order of the outputs, before
    `get_output_async` returns the outputs that end it.
    """

    engine_ranks_managed = (0,)

    def __init__(self, model: Model, count: Callable[[Reason], None]) -> None:
        self.resources = Resources()
        self.requests = OpenRequests()
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self._model = model
        self._count = count
        self._closed_by: TTServeError | None = None
        self._session: Session | None = None
        self._unavailable = TTServeError(
            Reason.NOT_READY, "the device service is not connected", retry_after=1.0
        )
        self._steps: asyncio.Queue[DecodedStep] = asyncio.Queue()
        self._kv_usage = 0.0

    # -- what the connection says --------------------------------------------

    def session_ready(self, session: Session) -> None:
        """Submit here from now on."""
        self._session = session

    def session_draining(self, grace_seconds: float) -> None:
        """What runs goes on; nothing new is submitted."""
        self._session = None
        self._unavailable = TTServeError(
            Reason.DRAINING, "the device service is shutting down", retry_after=1.0
        )

    def session_lost(self, error: TTServeError) -> None:
        """Everything that was open has failed; told of every failed attempt too."""
        self._session = None
        self._unavailable = error
        if self.requests:
            self._fail_open_requests(error)

    def take(self, response: device_pb2.AttachResponse) -> None:
        """An answer to a submission, or what a step produced."""
        match response.WhichOneof("event"):
            case "step":
                self._take_step(response.step)
            case "accepted":
                self.requests.accept(response.accepted.handle)
            case "rejected":
                error = from_status(response.rejected.status)
                self._count(error.reason)
                self.requests.reject(response.rejected.handle, error)
            case other:
                # A newer minor may add events; they concern newer frontends.
                logger.debug("ignored a message %r", other)

    # -- what RemoteLLM asks -------------------------------------------------

    @property
    def refusal(self) -> TTServeError | None:
        """Why nothing can be submitted now; None if something can."""
        if self._closed_by is not None:
            return self._closed_by
        return None if self._session is not None else self._unavailable

    async def submit(
        self,
        request: EngineCoreRequest,
        external_request_id: str,
        group: SubmissionGroup | None,
    ) -> asyncio.Future[None]:
        """Send a request; the future is done when it was admitted or refused.

        Raises TTServeError for a request that must not be sent, and when there
        is no session.
        """
        if self.refusal is not None:
            raise self.refusal
        opened = self.requests.add(request.request_id)
        envelope = Envelope(opened.handle, external_request_id, group)
        try:
            if len(request.prompt_token_ids or ()) < LONG_PROMPT_TOKENS:
                message = encode_submission(request, envelope, self._model)
            else:
                message = await asyncio.to_thread(
                    encode_submission, request, envelope, self._model
                )
        except BaseException:
            self.requests.close(opened.handle)
            raise
        if self._session is None:  # lost while we were encoding
            self.requests.reject(opened.handle, self._unavailable)
        else:
            self._session.submit(message)
        return opened.admission

    def abort(self, request_ids: Iterable[str], cause: device_pb2.AbortCause) -> None:
        """Stop requests; what still comes for them is ignored."""
        handles = self.requests.close_ids(request_ids)
        if handles and self._session is not None:
            self._session.abort(handles, cause)
        if handles and not self.requests:
            self._report_idle()

    def refuse(self, error: TTServeError) -> None:
        """Take nothing new from now on; what runs goes on."""
        self._closed_by = error

    def fail_everything(self, error: TTServeError) -> None:
        """End what is open, here and in the device service."""
        handles = self.requests.open_handles()
        if handles and self._session is not None:
            self._session.abort(handles, device_pb2.ABORT_CAUSE_SHUTDOWN)
        self._fail_open_requests(error)

    # -- what AsyncLLM asks --------------------------------------------------

    async def get_output_async(self) -> EngineCoreOutputs:
        """The next step's outputs; tells of its failures first."""
        step = await self._steps.get()
        for failure in step.failures:
            self._count(failure.error.reason)
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

    def _take_step(self, message: step_pb2.StepOutput) -> None:
        step = decode_step(message, self.requests.find_decoding)
        for handle in step.finished_handles:
            self.requests.close(handle)
        if message.HasField("stats"):
            self._kv_usage = message.stats.kv_usage
        self._steps.put_nowait(step)

    def _fail_open_requests(self, error: TTServeError) -> None:
        failed = self.requests.fail_all(error)
        outputs = EngineCoreOutputs(
            outputs=[
                EngineCoreOutput(name, [], finish_reason=FinishReason.ERROR)
                for name in failed
            ],
            scheduler_stats=SchedulerStats(),
        )
        failures = [Failure(name, error) for name in failed]
        self._steps.put_nowait(DecodedStep(outputs, failures, []))

    def _report_idle(self) -> None:
        """No step tells us that our last request is gone: nothing of it runs."""
        stats = SchedulerStats(kv_cache_usage=self._kv_usage)
        outputs = EngineCoreOutputs(scheduler_stats=stats)
        self._steps.put_nowait(DecodedStep(outputs, [], []))

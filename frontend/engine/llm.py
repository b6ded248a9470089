"""vLLM's AsyncLLM with its engine behind gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

import vllm.v1.engine.async_llm as async_llm_module
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from vllm.config import VllmConfig
from vllm.pooling_params import PoolingParams
from vllm.renderers import renderer_from_config
from vllm.sampling_params import SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.executor import Executor

from frontend.codec.outputs import Failure
from frontend.engine.client import GrpcEngineClient
from frontend.engine.failures import as_vllm_error
from frontend.engine.outputs import MendedOutputProcessor
from frontend.engine.requests import Placement
from frontend.http.notes import Notes, current_notes, note_failure
from ttserve.choices import choice_grammar
from ttserve.errors import TTServeError
from ttserve.v1 import device_pb2
from ttserve.v1.generation_pb2 import SubmissionGroup

logger = logging.getLogger(__name__)

LAST_SPANS_MS = 1000

TruncationSide = Literal["left", "right"]


class RemoteLLM(AsyncLLM):
    """Serves vLLM's handlers; outlives any device service.

    To be built outside of the event loop (loading a tokenizer takes a while)
    and used on it. `engine_core` is the client it was given.
    """

    engine_core: GrpcEngineClient

    def __init__(
        self,
        config: VllmConfig,
        client: GrpcEngineClient,
        *,
        log_requests: bool,
        log_stats: bool,
        truncation_side: TruncationSide,
    ) -> None:
        """`truncation_side`: where prompts are cut that a request lets be cut."""
        with _parts_of_ours(client, truncation_side):
            super().__init__(
                vllm_config=config,
                executor_class=Executor,  # only handed on to the client
                log_stats=log_stats,
                usage_context=UsageContext.OPENAI_API_SERVER,
                log_requests=log_requests,
            )
        self.output_processor = MendedOutputProcessor(
            self.output_processor, config.structured_outputs_config.reasoning_parser
        )
        # Or vLLM would compile each grammar on the event loop, as long as that takes.
        # The device service checks them, and has a limit.
        self.input_processor.structured_outputs_config = None  # type: ignore[assignment]
        client.on_failure = self._fail
        self._group_ids = itertools.count(1)
        self._notes: weakref.WeakKeyDictionary[RequestOutputCollector, Notes] = (
            weakref.WeakKeyDictionary()
        )
        self._families: dict[str, _Family] = {}

    def start(self) -> None:
        """Begin to hand out outputs; on the event loop."""
        self._run_output_handler()

    # -- a device service may be away ----------------------------------------

    @property
    def errored(self) -> bool:
        """Whether new requests have to be refused. vLLM asks before each one."""
        return self.engine_core.refusal is not None

    @property
    def dead_error(self) -> BaseException:
        """What vLLM raises when `errored`: 503, and not the end of the server."""
        refusal = self.engine_core.refusal
        if refusal is None:
            return EngineDeadError()
        note_failure(refusal)
        return as_vllm_error(refusal)

    @property
    def is_running(self) -> bool:
        """The output handler can be started again, so nothing here ends the server."""
        return True

    async def check_health(self) -> None:
        """Raise when no request could be served."""
        if self.errored:
            raise EngineDeadError()

    async def add_request(
        self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> RequestOutputCollector:
        """Refuse before anything is registered; else as vLLM does it."""
        if self.errored:
            raise self.dead_error
        _choice_as_grammar(params)
        return await super().add_request(request_id, prompt, params, *args, **kwargs)

    def _run_output_handler(self) -> None:
        """Start the output handler, again if an output was too much for it.

        vLLM fails and aborts the requests that were open then; the next ones
        are served.
        """
        if self.output_handler is not None and self.output_handler.done():
            self.output_handler = None
        # Not in the context of the HTTP request that happens to start it.
        contextvars.Context().run(super()._run_output_handler)

    async def send_spans(self) -> None:
        """Let the last spans be sent, for a second at most; for the end."""
        if self.output_processor.tracing_enabled:
            provider = trace.get_tracer_provider()
            if isinstance(provider, TracerProvider):
                await asyncio.to_thread(provider.force_flush, LAST_SPANS_MS)

    # -- submissions and aborts ----------------------------------------------

    async def _add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None,
        index: int,
        queue: RequestOutputCollector,
    ) -> None:
        """Register and submit; return when the device service has admitted it.

        Children of one request come one after the other and are admitted
        together: only the last one waits, for all. Whatever goes wrong, a
        cancelled client included, leaves nothing behind on either side.
        """
        self.output_processor.add_request(request, prompt, parent_req, index, queue)
        family = self._family(parent_req)
        notes = self._notes[queue] = current_notes()
        if not request.trace_headers:  # no span of ours: the client's goes on
            request.trace_headers = notes.trace_headers or None
        try:
            admission = await self.engine_core.submit(
                request, notes.request_id, family.placement if family else Placement()
            )
            if family is None:
                await admission
            elif family.add(admission):
                await asyncio.gather(*family.admissions)
        except BaseException as error:
            self._withdraw(parent_req.request_id if parent_req else request.request_id)
            if isinstance(error, TTServeError):
                note_failure(error)
                raise as_vllm_error(error) from error
            raise
        finally:
            if parent_req is not None and index == parent_req.n - 1:
                self._families.pop(parent_req.request_id, None)
        if self.log_requests:
            logger.info(
                "request %s [%s] admitted",
                notes.request_id or "-",
                request.request_id,
                extra={"engine_request_id": request.request_id},
            )

    async def abort(
        self,
        request_id: str | Iterable[str],
        internal: bool = False,  # noqa: FBT001, FBT002 - vLLM's signature
    ) -> None:
        """The client has gone. (A matched stop string comes another way.)"""
        names = (request_id,) if isinstance(request_id, str) else list(request_id)
        open_ids = self.output_processor.abort_requests(names, internal)
        self.engine_core.abort(open_ids, device_pb2.ABORT_CAUSE_CLIENT)
        if self.log_requests:
            logger.info("Aborted request(s) %s.", ",".join(names))

    def _family(self, parent: ParentRequest | None) -> _Family | None:
        if parent is None:
            return None
        family = self._families.get(parent.request_id)
        if family is None:
            group = SubmissionGroup(group_id=next(self._group_ids), count=parent.n)
            family = _Family(Placement(group=group), parent.n)
            self._families[parent.request_id] = family
        return family

    def _withdraw(self, request_id: str) -> None:
        self._families.pop(request_id, None)
        open_ids = self.output_processor.abort_requests([request_id], internal=True)
        self.engine_core.abort(open_ids, device_pb2.ABORT_CAUSE_CLIENT)

    def _fail(self, failure: Failure) -> None:
        """Let a request end with its reason, before vLLM sees the output.

        The exception stays in front of whatever vLLM puts into the queue then.
        Siblings of a failed child would run on for nobody.
        """
        state = self.output_processor.request_states.get(failure.request_id)
        if state is None or state.queue is None:
            return
        self._notes[state.queue].failure = failure.error
        state.queue.put(as_vllm_error(failure.error))
        if state.parent_req is not None:
            siblings = state.parent_req.child_requests - {failure.request_id}
            open_ids = self.output_processor.abort_requests(siblings, internal=True)
            self.engine_core.abort(open_ids, device_pb2.ABORT_CAUSE_CLIENT)


class _Family:
    """The children of one request with n > 1, until the last one is submitted."""

    def __init__(self, placement: Placement, count: int) -> None:
        self.placement = placement
        self._count = count
        self.admissions: list[asyncio.Future[None]] = []

    def add(self, admission: asyncio.Future[None]) -> bool:
        """Note a child's admission; whether it was the last child."""
        self.admissions.append(admission)
        return len(self.admissions) == self._count


@contextlib.contextmanager
def _parts_of_ours(
    client: GrpcEngineClient, truncation_side: TruncationSide
) -> Iterator[None]:
    """Let AsyncLLM's constructor find our client and tokenizer where it makes its own.

    It calls `EngineCoreClient.make_async_mp_client(...)` and
    `renderer_from_config(...)` and there is no hook, so these names stand for
    something else while it runs. The renderer's threads work on copies that vLLM
    makes of the tokenizer as it was built, so the side cannot be set afterwards.
    """

    class Maker:
        @staticmethod
        def make_async_mp_client(**_: object) -> GrpcEngineClient:
            return client

    names = vars(async_llm_module)
    ours = {
        "EngineCoreClient": Maker,
        "renderer_from_config": partial(
            renderer_from_config, truncation_side=truncation_side
        ),
    }
    originals = {name: names[name] for name in ours}
    names.update(ours)
    try:
        yield
    finally:
        names.update(originals)


def _choice_as_grammar(params: SamplingParams | PoolingParams) -> None:
    """Write a choice as a grammar ourselves: vLLM does not escape line breaks."""
    structured = getattr(params, "structured_outputs", None)
    if structured is not None and structured.choice:
        structured.grammar = choice_grammar(structured.choice)
        structured.choice = None

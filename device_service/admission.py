"""Admission: who gets into the engine's inbox, and how many.

`prepare` examines a submission and builds vLLM's `Request`; it touches no state
and may run on any thread. Everything else belongs to the event loop. A request
is live from `admit` until its session has taken its final update; until then it
counts against the queue bound and nobody else may use its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from device_service.checks import check
from device_service.description import ModelDescription
from device_service.handle import EngineHandle
from device_service.journal import RequestJournal
from device_service.kv.lane_kv import BlockHasher
from device_service.records import AbortCause, Admitted, RequestUpdate, UpdateSink
from device_service.sampling.interface import GrammarKeeper
from device_service.submission import Submission
from ttserve.errors import Reason, TTServeError, unsupported

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1.0

NormaliseGrammar = Callable[[SamplingParams], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may be admitted; nobody has seen it yet."""

    handle: int
    request: Request
    external_request_id: str
    top_logprobs: int | None


@dataclass(frozen=True, slots=True)
class RequestFactory:
    """What turns a submission into a request.

    `block_hasher` is None without a prefix cache. `normalise_grammar` makes a
    constraint compilable as it stands, or raises TTServeError; it may take
    long. `thinking_budgets` says whether the sampler knows where the model's
    reasoning ends.
    """

    model: ModelDescription
    block_hasher: BlockHasher | None
    normalise_grammar: NormaliseGrammar
    thinking_budgets: bool = False

    def prepare(self, submission: Submission) -> Candidate:
        """Check a submission and build its request. Any thread; no state."""
        check(submission, self.model)
        params = submission.request.sampling_params
        assert params is not None
        if params.thinking_token_budget is not None and not self.thinking_budgets:
            raise unsupported(
                "sampling.thinking_token_budget",
                "the model's reasoning has no known end, so it has no budget",
            )
        if params.structured_outputs is not None:
            self.normalise_grammar(params)
        # The request gets no hasher: it would ask it after every token. Its prompt
        # is hashed here, off the engine thread; the rest when a block is full.
        request = Request.from_engine_core_request(submission.request, None)
        if self.block_hasher is not None:
            request.block_hashes = self.block_hasher(request)
        request.arrival_time = time.time()
        return Candidate(
            handle=submission.handle,
            request=request,
            external_request_id=submission.external_request_id,
            top_logprobs=params.num_logprobs,
        )


class Admission:
    """Bounds the queue and keeps the ids of live requests. Event loop only."""

    def __init__(
        self,
        factory: RequestFactory,
        engine: EngineHandle,
        grammars: GrammarKeeper,
        journal: RequestJournal,
    ) -> None:
        self._factory = factory
        self._engine = engine
        self._grammars = grammars
        self.journal = journal
        self._live: dict[str, Admitted] = {}
        self._refusal: TTServeError | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Live requests of all sessions."""
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def capacity(self) -> int:
        """Most requests that can be live."""
        model = self._factory.model
        return model.scheduling.total_rows + model.limits.max_queued_requests

    def prepare(self, submission: Submission) -> Candidate:
        """Check a submission and build its request. Any thread."""
        return self._factory.prepare(submission)

    def close(self, refusal: TTServeError) -> None:
        """Refuse everything from now on, with this error."""
        self._refusal = refusal

    def admit(
        self, batch: Sequence[Candidate], sink: UpdateSink, session_number: int
    ) -> None:
        """Queue all of the batch, or raise and queue none of it."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # raised many times
        self._check_ids(batch)
        self._check_room(len(batch))
        admitted = [
            Admitted(
                request=candidate.request,
                sink=sink,
                session_number=session_number,
                handle=candidate.handle,
                external_request_id=candidate.external_request_id,
                top_logprobs=candidate.top_logprobs,
                awaits_grammar=candidate.request.use_structured_output,
            )
            for candidate in batch
        ]
        for entry in admitted:
            self._live[entry.request.request_id] = entry
            self.journal.admit(entry)
        self._idle.clear()
        self._engine.submit(admitted)
        for entry in admitted:
            if entry.awaits_grammar:
                self._compile(entry.request)

    def abort(self, request_ids: Sequence[str], cause: AbortCause) -> None:
        """End requests; each stays live until its final update has come."""
        if request_ids:
            self._engine.abort(request_ids, cause)

    def release(self, request_id: str, last: RequestUpdate) -> None:
        """A request's final update has reached its session."""
        admitted = self._live.pop(request_id, None)
        if admitted is not None:
            self.journal.end(admitted, last)
        if not self._live:
            self._idle.set()

    async def wait_idle(self, seconds: float) -> int:
        """Wait until nothing is live; how many still are after that time."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        return len(self._live)

    def _check_ids(self, batch: Sequence[Candidate]) -> None:
        seen: set[str] = set()
        for candidate in batch:
            request_id = candidate.request.request_id
            if request_id in self._live or request_id in seen:
                raise TTServeError(
                    Reason.REQUEST_ID_IN_USE,
                    f"a live request has the id {request_id!r}",
                    metadata={"requestId": request_id},
                )
            seen.add(request_id)

    def _check_room(self, count: int) -> None:
        if len(self._live) + count <= self.capacity:
            return
        model = self._factory.model
        waiting = max(0, len(self._live) - model.scheduling.total_rows)
        most = model.limits.max_queued_requests
        raise TTServeError(
            Reason.QUEUE_FULL,
            f"{waiting} requests wait and at most {most} may",
            metadata={"waitingRequests": str(waiting), "maxQueuedRequests": str(most)},
            retry_after=RETRY_AFTER_SECONDS,
        )

    def _compile(self, request: Request) -> None:
        try:
            self._grammars.start(request, self._engine.grammar_ready)
        except Exception as error:
            logger.exception("grammar of %s cannot be started", request.request_id)
            failure = TTServeError(Reason.GRAMMAR, f"cannot compile: {error}")
            self._engine.grammar_ready(request.request_id, failure)

"""A live request, as the engine knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.v1.request import Request, RequestStatus

from device_service.records import (
    Admitted,
    EventKind,
    PrefillReport,
    UpdateSink,
    WaitingReason,
)
from device_service.sampling.facts import SamplingFacts

OrderKey = tuple[int, int]


@dataclass(slots=True, eq=False)
class Sequence:
    """Everything the engine keeps about a request; engine thread only.

    `request` is vLLM's and holds tokens and counters; vLLM's own Scheduler
    would write `status`, `num_computed_tokens`, `num_in_flight_tokens`,
    `num_output_placeholders`, `is_prefill_chunk` and `num_preemptions`, so here
    the lane and the outcome do. `row` is the row in its lane, None while it
    waits; `is_finished` says that its final update has been made. `order` sorts
    waiting requests and picks preemption victims: smaller runs first.
    """

    request: Request
    sink: UpdateSink
    session_number: int
    handle: int
    external_request_id: str
    top_logprobs: int | None
    lane: int
    order: OrderKey
    admitted_at: float
    awaits_grammar: bool
    sampling: SamplingFacts
    row: int | None = None
    is_finished: bool = False
    prefill_report: PrefillReport | None = None
    events: list[tuple[EventKind, float]] = field(default_factory=list)

    @classmethod
    def admit(
        cls,
        admitted: Admitted,
        sampling: SamplingFacts,
        *,
        lane: int,
        order: OrderKey,
        now: float,
    ) -> Sequence:
        """Begin the life of an admitted request, waiting in its lane."""
        sequence = cls(
            request=admitted.request,
            sink=admitted.sink,
            session_number=admitted.session_number,
            handle=admitted.handle,
            external_request_id=admitted.external_request_id,
            top_logprobs=admitted.top_logprobs,
            lane=lane,
            order=order,
            admitted_at=now,
            awaits_grammar=admitted.awaits_grammar,
            sampling=sampling,
        )
        sequence.events.append((EventKind.QUEUED, now))
        return sequence

    @property
    def request_id(self) -> str:
        """vLLM's internal id, unique among live requests."""
        return self.request.request_id

    @property
    def is_prefilling(self) -> bool:
        """Whether prompt (or, after a preemption, replayed) tokens remain."""
        return self.request.is_prefill_chunk

    @property
    def tokens_to_run(self) -> int:
        """Tokens whose KV is missing, counting those still in flight as known."""
        request = self.request
        return (
            request.num_tokens
            + request.num_output_placeholders
            - request.num_computed_tokens
        )

    @property
    def waiting_reason(self) -> WaitingReason:
        """Why it waits, for the Inspector."""
        if self.awaits_grammar:
            return WaitingReason.GRAMMAR
        if self.request.status == RequestStatus.PREEMPTED:
            return WaitingReason.PREEMPTED
        return WaitingReason.CAPACITY

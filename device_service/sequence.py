"""A live request, as the engine knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from device_service.records import (
    Admitted,
    EventKind,
    PrefillReport,
    RequestHistory,
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

    `last_length` is the number of tokens, prompt included, at which the request
    ends; `ending_ids` are the tokens that end it. Both are read once, so that
    most tokens can be told not to end anything without asking vLLM.

    `steps`, `scheduled_at` and `first_token_at` are for `history`.
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
    last_length: int
    ending_ids: frozenset[int]
    row: int | None = None
    is_finished: bool = False
    steps: int = 0
    scheduled_at: float | None = None
    first_token_at: float | None = None
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
        max_model_len: int,
        now: float,
    ) -> Sequence:
        """Begin the life of an admitted request, waiting in its lane."""
        request = admitted.request
        longest = request.num_prompt_tokens + request.max_tokens
        sequence = cls(
            request=request,
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
            last_length=min(longest, max_model_len),
            ending_ids=_ending_ids(request.sampling_params),
        )
        sequence.events.append((EventKind.QUEUED, now))
        return sequence

    @property
    def request_id(self) -> str:
        """vLLM's internal id, unique among live requests."""
        return self.request.request_id

    def may_end_with(self, token_id: int) -> bool:
        """Whether vLLM's stop rules have to be asked about the newest token.

        False is certain: the token is not among those that stop, the length is
        not reached and nobody looks for repetition.
        """
        request = self.request
        if token_id in self.ending_ids or request.num_tokens >= self.last_length:
            return True
        params = request.sampling_params
        return params is not None and params.repetition_detection is not None

    def history(self, now: float) -> RequestHistory:
        """Its life, which ends now."""
        request = self.request
        return RequestHistory(
            lane=self.lane,
            steps=self.steps,
            preemptions=request.num_preemptions,
            output_tokens=request.num_output_tokens,
            queued=self.admitted_at,
            scheduled=self.scheduled_at,
            first_token=self.first_token_at,
            ended=now,
        )

    @property
    def is_spoken_for(self) -> bool:
        """Whether tokens in flight already reach the request's last position."""
        request = self.request
        outstanding = request.num_output_placeholders
        return outstanding > 0 and request.num_tokens + outstanding >= self.last_length

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


def _ending_ids(params: SamplingParams | None) -> frozenset[int]:
    assert params is not None
    ids = set(params.stop_token_ids or ())
    if params.eos_token_id is not None:
        ids.add(params.eos_token_id)
    return frozenset(ids)

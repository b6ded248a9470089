"""From what happened to requests to one message per session and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from device_service.records import (
    Finish,
    RequestUpdate,
    SessionStats,
    StepUpdates,
    TokenLogprobs,
    UpdateSink,
)
from device_service.sequence import Sequence


class UpdateBoard:
    """Collects updates and delivers them, once per sink and flush.

    Engine thread only. `kv_usage` is asked once per flush.
    """

    def __init__(
        self, clock: Callable[[], float], kv_usage: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._kv_usage = kv_usage
        self._pending: dict[UpdateSink, list[RequestUpdate]] = {}
        self._sessions: dict[UpdateSink, int] = {}

    def post(
        self,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: list[TokenLogprobs] | None = None,
        finish: Finish | None = None,
    ) -> None:
        """Say what happened to a request, at most once per flush."""
        update = RequestUpdate(
            handle=sequence.handle,
            token_ids=token_ids,
            logprobs=logprobs,
            finish=finish,
            prefill=sequence.prefill_report if token_ids else None,
            events=tuple(sequence.events),
        )
        if token_ids:
            sequence.prefill_report = None
        sequence.events.clear()
        self._pending.setdefault(sequence.sink, []).append(update)
        self._sessions[sequence.sink] = sequence.session_number

    def flush(self, step_number: int, live: Iterable[Sequence]) -> None:
        """Deliver everything posted since the last flush."""
        if not self._pending:
            return
        running: Counter[int] = Counter()
        waiting: Counter[int] = Counter()
        for sequence in live:
            held = waiting if sequence.row is None else running
            held[sequence.session_number] += 1
        now, usage = self._clock(), self._kv_usage()
        for sink, updates in self._pending.items():
            session = self._sessions[sink]
            prefills = [u.prefill for u in updates if u.prefill is not None]
            stats = SessionStats(
                running=running[session],
                waiting=waiting[session],
                kv_usage=usage,
                prefix_queries=sum(p.prompt_tokens for p in prefills),
                prefix_hits=sum(p.cached_tokens for p in prefills),
                prefix_requests=len(prefills),
            )
            sink.deliver(StepUpdates(step_number, now, updates, stats))
        self._pending.clear()
        self._sessions.clear()

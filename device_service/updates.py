"""From what happened to requests to one message per session and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from device_service.records import (
    EventKind,
    Finish,
    PrefillReport,
    RequestUpdate,
    SessionStats,
    StepUpdates,
    TokenLogprobs,
    UpdateSink,
)
from device_service.sequence import Sequence

NO_SESSION = 0
"""Session number of requests that no frontend's stream carries."""

_Posted = tuple[Sequence, list[int], list[TokenLogprobs] | None, Finish | None]


class UpdateBoard:
    """Collects updates and delivers them, once per sink and flush.

    Engine thread only. `kv_usage` is asked once per flush.
    """

    def __init__(
        self, clock: Callable[[], float], kv_usage: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._kv_usage = kv_usage
        self._posted: list[_Posted] = []
        self._told: dict[int, tuple[int, int]] = {}

    def post(
        self,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: list[TokenLogprobs] | None = None,
        finish: Finish | None = None,
    ) -> None:
        """Say what happened to a request, at most once per flush.

        While the mesh waits for its next step, so no more than a note is made.
        """
        self._posted.append((sequence, token_ids, logprobs, finish))

    def flush(self, step_number: int, live: Iterable[Sequence]) -> None:
        """Deliver everything posted since the last flush.

        A session whose requests all wait gets no updates, but is told when their
        number has changed: what all sessions count adds up to what there is.
        """
        if not self._posted:
            return
        now = self._clock()
        pending: dict[UpdateSink, list[RequestUpdate]] = {}
        sessions: dict[UpdateSink, int] = {}
        for posted in self._posted:
            sequence = posted[0]
            pending.setdefault(sequence.sink, []).append(_update(now, *posted))
            sessions[sequence.sink] = sequence.session_number
        self._posted.clear()
        running: Counter[int] = Counter()
        waiting: Counter[int] = Counter()
        sinks: dict[int, UpdateSink] = {}
        for sequence in live:
            held = waiting if sequence.row is None else running
            held[sequence.session_number] += 1
            sinks[sequence.session_number] = sequence.sink
        sinks.pop(NO_SESSION, None)  # a call counts nothing
        told = {number: (running[number], waiting[number]) for number in sinks}
        for number, sink in sinks.items():
            if sink not in pending and self._told.get(number) != told[number]:
                pending[sink], sessions[sink] = [], number
        self._told = told
        usage = self._kv_usage()
        for sink, updates in pending.items():
            session = sessions[sink]
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


def _update(
    now: float,
    sequence: Sequence,
    token_ids: list[int],
    logprobs: list[TokenLogprobs] | None,
    finish: Finish | None,
) -> RequestUpdate:
    """The message for one note; what it tells of is taken off the request."""
    prefill: PrefillReport | None = None
    events: tuple[tuple[EventKind, float], ...] = ()
    if token_ids:
        prefill, sequence.prefill_report = sequence.prefill_report, None
        if prefill is not None:
            sequence.first_token_at = now
    if sequence.events:
        events = tuple(sequence.events)
        sequence.events.clear()
    history = None if finish is None else sequence.history(now)
    return RequestUpdate(
        sequence.handle, token_ids, logprobs, finish, prefill, events, history
    )

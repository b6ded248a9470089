"""What was produced for a client and is not written yet, merged per request.

A reader that keeps up takes each step as it comes. For one that does not, the
steps pile up in here: tokens of a request are appended to each other, gauges
keep their newest value, counters add up. Memory grows with tokens, not with
steps, and `take` hands out pieces of bounded size, so a slow reader gets more
messages rather than one that is too large to send. Event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from device_service.records import (
    EventKind,
    Finish,
    PrefillReport,
    RequestUpdate,
    SessionStats,
    StepUpdates,
    TokenLogprobs,
)

MAX_VALUES = 65536
"""Most numbers (token ids, log probabilities) in one piece, some 300 kB."""


@dataclass(slots=True)
class Delta:
    """What is new for one request; `logprobs` is parallel to `token_ids`."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: Finish | None = None
    prefill: PrefillReport | None = None
    events: list[tuple[EventKind, float]] = field(default_factory=list)

    @classmethod
    def of(cls, update: RequestUpdate) -> Delta:
        """Start from one update, whose lists stay the engine's."""
        return cls(
            token_ids=list(update.token_ids),
            logprobs=None if update.logprobs is None else list(update.logprobs),
            finish=update.finish,
            prefill=update.prefill,
            events=list(update.events),
        )

    def add(self, update: RequestUpdate) -> None:
        """Append a later update of the same request."""
        self.token_ids += update.token_ids
        if update.logprobs is not None:
            self.logprobs = (self.logprobs or []) + update.logprobs
        self.finish = update.finish
        self.prefill = self.prefill or update.prefill
        self.events += update.events

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        return len(self.token_ids) + sum(
            2 + 2 * len(entry.top_ids) for entry in self.logprobs or ()
        )

    def split(self, limit: int) -> Delta:
        """Take off at most `limit` values of tokens, at least one token.

        What stays behind has the later tokens and the finish.
        """
        count, values = 0, 0
        while count < len(self.token_ids) - 1 and values < limit:
            values += 1
            if self.logprobs is not None:
                values += 2 + 2 * len(self.logprobs[count].top_ids)
            count += 1
        head = Delta(
            token_ids=self.token_ids[:count],
            logprobs=None if self.logprobs is None else self.logprobs[:count],
            prefill=self.prefill,
            events=self.events,
        )
        self.token_ids = self.token_ids[count:]
        if self.logprobs is not None:
            self.logprobs = self.logprobs[count:]
        self.prefill, self.events = None, []
        return head


@dataclass(frozen=True, slots=True)
class Piece:
    """What goes into one message: deltas by handle, as of `step_number`."""

    step_number: int
    monotonic_seconds: float
    deltas: dict[int, Delta]
    stats: SessionStats | None


class PendingSteps:
    """Steps that wait for one reader."""

    def __init__(self) -> None:
        self._deltas: dict[int, Delta] = {}
        self._stats: SessionStats | None = None
        self._step_number = 0
        self._monotonic_seconds = 0.0
        self.merged_steps = 0

    def __bool__(self) -> bool:
        return bool(self._deltas) or self._stats is not None

    def __contains__(self, handle: int) -> bool:
        return handle in self._deltas

    def __len__(self) -> int:
        """Requests that have something to be written."""
        return len(self._deltas)

    def add(self, step: StepUpdates, updates: list[RequestUpdate]) -> None:
        """Add what a step did; `updates` are those that the client still wants."""
        if self:
            self.merged_steps += 1
        self._step_number = step.step_number
        self._monotonic_seconds = step.monotonic_seconds
        self._stats = _merge_stats(self._stats, step.stats)
        for update in updates:
            known = self._deltas.get(update.handle)
            if known is None:
                self._deltas[update.handle] = Delta.of(update)
            else:
                known.add(update)

    def drop(self, handle: int) -> None:
        """Forget a request that the client no longer wants."""
        self._deltas.pop(handle, None)

    def take(self, max_values: int = MAX_VALUES) -> Piece:
        """Take off the next piece, at most `max_values` unless one token is more."""
        taken: dict[int, Delta] = {}
        room = max_values
        for handle in list(self._deltas):
            delta = self._deltas[handle]
            size = delta.values
            if size > room and (taken or len(delta.token_ids) > 1):
                if not taken:
                    taken[handle] = delta.split(room)
                break
            taken[handle] = self._deltas.pop(handle)
            room -= size
        stats, self._stats = self._stats, None
        return Piece(self._step_number, self._monotonic_seconds, taken, stats)


def _merge_stats(old: SessionStats | None, new: SessionStats) -> SessionStats:
    if old is None:
        return new
    return replace(
        new,
        prefix_queries=old.prefix_queries + new.prefix_queries,
        prefix_hits=old.prefix_hits + new.prefix_hits,
        prefix_requests=old.prefix_requests + new.prefix_requests,
    )

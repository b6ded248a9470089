"""What was produced for a client and is not written yet, merged per request.

A reader that keeps up takes each step as it comes. For one that does not, the
steps pile up in here: tokens of a request are appended to each other, gauges
keep their newest value, counters add up. Memory grows with tokens, not with
steps, and `take` hands out pieces of bounded size, so a slow reader gets more
messages rather than one that is too large to send. Event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """What is new for one request; `logprobs` is parallel to `token_ids`.

    The lists are the engine's until something is added: most deltas are
    written as they came.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: Finish | None = None
    prefill: PrefillReport | None = None
    events: tuple[tuple[EventKind, float], ...] = ()
    owned: bool = False

    @classmethod
    def of(cls, update: RequestUpdate) -> Delta:
        """Start from one update."""
        return cls(
            update.token_ids,
            update.logprobs,
            update.finish,
            update.prefill,
            update.events,
        )

    def add(self, update: RequestUpdate) -> None:
        """Append a later update of the same request."""
        if not self.owned:
            self.token_ids = list(self.token_ids)
            self.logprobs = list(self.logprobs or ())
            self.owned = True
        self.token_ids += update.token_ids
        if update.logprobs is not None:
            assert self.logprobs is not None  # a list since the copy above
            self.logprobs += update.logprobs
        self.finish = update.finish
        self.prefill = self.prefill or update.prefill
        self.events += update.events

    def split(self, limit: int) -> Delta:
        """Take off at most `limit` values of tokens, at least one token.

        What stays behind has the later tokens and the finish.
        """
        count, values = 0, 0
        while count < len(self.token_ids) - 1 and values < limit:
            entry = self.logprobs[count : count + 1] if self.logprobs else None
            values += values_of([self.token_ids[count]], entry)
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
        self.prefill, self.events, self.owned = None, (), True
        return head


def values_of(token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> int:
    """How many numbers a delta or an update holds."""
    if not logprobs:
        return len(token_ids)
    return len(token_ids) + sum(2 + 2 * len(entry.top_ids) for entry in logprobs)


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
        self._values = 0
        self._stats: SessionStats | None = None
        self._step_number = 0
        self._monotonic_seconds = 0.0
        self.merged_steps = 0

    def __bool__(self) -> bool:
        return bool(self._deltas) or self._stats is not None

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
            self._values += values_of(update.token_ids, update.logprobs)
            known = self._deltas.get(update.handle)
            if known is None:
                self._deltas[update.handle] = Delta.of(update)
            else:
                known.add(update)

    def drop(self, handle: int) -> None:
        """Forget a request that the client no longer wants."""
        delta = self._deltas.pop(handle, None)
        if delta is not None:
            self._values -= values_of(delta.token_ids, delta.logprobs)

    def take(self, max_values: int = MAX_VALUES) -> Piece:
        """Take off the next piece, at most `max_values` unless one token is more."""
        if self._values <= max_values:
            taken, self._deltas, self._values = self._deltas, {}, 0
        else:
            taken = self._take_some(max_values)
        stats, self._stats = self._stats, None
        return Piece(self._step_number, self._monotonic_seconds, taken, stats)

    def _take_some(self, room: int) -> dict[int, Delta]:
        taken: dict[int, Delta] = {}
        for handle, delta in list(self._deltas.items()):
            size = values_of(delta.token_ids, delta.logprobs)
            if size > room and (taken or len(delta.token_ids) > 1):
                if not taken:
                    taken[handle] = delta.split(room)
                break
            taken[handle] = self._deltas.pop(handle)
            room -= size
        for delta in taken.values():
            self._values -= values_of(delta.token_ids, delta.logprobs)
        return taken


def _merge_stats(old: SessionStats | None, new: SessionStats) -> SessionStats:
    if old is None:
        return new
    return replace(
        new,
        prefix_queries=old.prefix_queries + new.prefix_queries,
        prefix_hits=old.prefix_hits + new.prefix_hits,
        prefix_requests=old.prefix_requests + new.prefix_requests,
    )

"""What of a step is a decision, and where two differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from device_service.records import FinishKind, StepRecord

_BY_ITSELF = {FinishKind.STOP.value, FinishKind.REPETITION.value}


BLOCKS = "used and free blocks"
"""Compared last. A step is recorded after the one behind it was planned, so when
they alone differ, that one may show why.
"""


class Share(NamedTuple):
    """One request's share of a step, and how it ended."""

    lane: int
    row: int
    request_id: str
    start: int
    tokens: int
    chunk: bool
    produced: int
    finish: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay left the recording: the step, what of it, and both values."""

    step: int
    what: str
    recorded: object
    replayed: object


def decisions(step: StepRecord, *, first: bool) -> dict[str, object]:
    """What was decided about a step, by name, most telling first. Whether it failed
    is no decision, and compared apart.

    Times are not among it, nor the shape that the step ran at, which is the mesh's.
    `first`: it is the first after the picture, where nothing is in flight in the
    replay; that it did not overlap is then all there is to tell.
    """
    overlap = step.overlap
    why = "" if first and not overlap.overlap else overlap.reason
    return {
        "phase": step.phase.value,
        "phase reason": step.phase_reason,
        "overlap": overlap.overlap,
        "overlap reason": why,
        "preempted": step.preempted,
        "rows": shares(step),
        "sampling site": step.sampling.site.value,
        "sampling reason": step.sampling.reason,
        "waiting": step.waiting,
        BLOCKS: tuple((lane.used_blocks, lane.free_blocks) for lane in step.lanes),
    }


def shares(step: StepRecord) -> tuple[Share, ...]:
    """The rows of all lanes."""
    return tuple(
        Share(
            lane.lane,
            row.row,
            row.request_id,
            row.start_position,
            row.tokens,
            row.intermediate_chunk,
            row.produced_tokens,
            "stop" if row.finish_reason in _BY_ITSELF else row.finish_reason,
        )
        for lane in step.lanes
        for row in lane.rows
    )


def compare(
    recorded: StepRecord, replayed: StepRecord, *, first: bool
) -> Difference | None:
    """The first thing that was decided otherwise; None when all is equal."""
    number = recorded.number
    if replayed.number != number:
        return Difference(number, "number", number, replayed.number)
    if bool(replayed.error) != bool(recorded.error):
        return Difference(number, "error", recorded.error, replayed.error)
    was, now = decisions(recorded, first=first), decisions(replayed, first=first)
    for what, value in was.items():
        if value != now[what]:
            if what == "rows":
                return _of_rows(number, shares(recorded), shares(replayed))
            return Difference(number, what, value, now[what])
    return None


def _of_rows(number: int, was: tuple[Share, ...], now: tuple[Share, ...]) -> Difference:
    """The rows that differ, without those that are equal."""
    gone = tuple(share for share in was if share not in now)
    come = tuple(share for share in now if share not in was)
    return Difference(number, "rows", gone, come)

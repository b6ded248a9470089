"""A picture of the engine, for the Inspector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from device_service.records import EngineState, LaneState, RowState, WaitingState
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence

if TYPE_CHECKING:
    from device_service.engine import EngineParts


def engine_state(parts: EngineParts) -> EngineState:
    """What an engine of these parts has. Engine thread."""
    now = parts.clock()
    return EngineState(
        step_number=parts.planner.last_number,
        paused=parts.control.paused,
        lanes=tuple(lane_state(lane, now) for lane in parts.lanes),
        steps_in_flight=len(parts.pipeline),
        grammars=parts.grammars.live,
    )


def lane_state(lane: Lane, now: float) -> LaneState:
    """Rows, queue and blocks of one lane. Engine thread."""
    running = sorted(lane.running, key=lambda s: -1 if s.row is None else s.row)
    return LaneState(
        lane=lane.number,
        total_rows=lane.limits.rows,
        rows=tuple(_rows(lane, running)),
        waiting=tuple(_waiting(s, now) for s in lane.waiting),
        total_blocks=lane.kv.total_blocks,
        free_blocks=lane.kv.free_blocks,
    )


def _rows(lane: Lane, running: Iterable[Sequence]) -> Iterable[RowState]:
    for sequence in running:
        assert sequence.row is not None
        request = sequence.request
        yield RowState(
            row=lane.merged_row(sequence.row),
            request_id=sequence.request_id,
            external_request_id=sequence.external_request_id,
            session_number=sequence.session_number,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_output_tokens,
            computed_tokens=request.num_computed_tokens,
            blocks=lane.kv.num_blocks(sequence.row),
            preemptions=request.num_preemptions,
        )


def _waiting(sequence: Sequence, now: float) -> WaitingState:
    return WaitingState(
        request_id=sequence.request_id,
        session_number=sequence.session_number,
        prompt_tokens=sequence.request.num_tokens,
        reason=sequence.waiting_reason,
        waited_seconds=now - sequence.admitted_at,
    )

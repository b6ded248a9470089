"""StepRecord and EngineState -> the Inspector's messages."""

from __future__ import annotations

from device_service.records import (
    LaneRecord,
    LaneState,
    Phase,
    RowRecord,
    RowState,
    SamplingSite,
    StepRecord,
    WaitingReason,
    WaitingState,
)
from ttserve.v1 import inspector_pb2

PHASES = {
    Phase.PREFILL: inspector_pb2.PHASE_PREFILL,
    Phase.DECODE: inspector_pb2.PHASE_DECODE,
}
SITES = {
    SamplingSite.DEVICE: inspector_pb2.SAMPLING_SITE_DEVICE,
    SamplingSite.HOST: inspector_pb2.SAMPLING_SITE_HOST,
    SamplingSite.NONE: inspector_pb2.SAMPLING_SITE_NONE,
}
WAITING_REASONS = {
    WaitingReason.CAPACITY: inspector_pb2.WAITING_REASON_CAPACITY,
    WaitingReason.GRAMMAR: inspector_pb2.WAITING_REASON_GRAMMAR,
    WaitingReason.PREEMPTED: inspector_pb2.WAITING_REASON_PREEMPTED,
}


def step_record(record: StepRecord) -> inspector_pb2.StepRecord:
    """Everything about one step."""
    return inspector_pb2.StepRecord(
        number=record.number,
        phase=PHASES[record.phase],
        phase_reason=record.phase_reason,
        lanes=map(_lane_record, record.lanes),
        scheduled_tokens=record.scheduled_tokens,
        produced_tokens=record.produced_tokens,
        sampling_site=SITES[record.sampling.site],
        sampling_reason=record.sampling.reason,
        overlapped=record.overlap.overlap,
        overlap_reason=record.overlap.reason,
        preempted_request_ids=record.preempted,
        host_us=record.host_us,
        device_us=record.device_us,
        readback_us=record.readback_us,
        host_gap_us=record.host_gap_us,
        unix_seconds=record.unix_seconds,
        padded_rows=record.padded_rows,
        waiting_requests=record.waiting,
        error=record.error,
    )


def _lane_record(lane: LaneRecord) -> inspector_pb2.LaneRecord:
    return inspector_pb2.LaneRecord(
        lane=lane.lane,
        rows=map(_step_row, lane.rows),
        used_blocks=lane.used_blocks,
        free_blocks=lane.free_blocks,
    )


def _step_row(row: RowRecord) -> inspector_pb2.StepRow:
    return inspector_pb2.StepRow(
        row=row.row,
        request_id=row.request_id,
        external_request_id=row.external_request_id,
        start_position=row.start_position,
        tokens=row.tokens,
        intermediate_chunk=row.intermediate_chunk,
        produced_tokens=row.produced_tokens,
        finish_reason=row.finish_reason,
    )


def lane_state(lane: LaneState) -> inspector_pb2.LaneState:
    """One lane, as it is."""
    return inspector_pb2.LaneState(
        lane=lane.lane,
        rows=map(_row_state, lane.rows),
        waiting=map(_waiting_state, lane.waiting),
        total_blocks=lane.total_blocks,
        free_blocks=lane.free_blocks,
        total_rows=lane.total_rows,
    )


def _row_state(row: RowState) -> inspector_pb2.RowState:
    return inspector_pb2.RowState(
        row=row.row,
        request_id=row.request_id,
        external_request_id=row.external_request_id,
        session_number=row.session_number,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        computed_tokens=row.computed_tokens,
        blocks=row.blocks,
        preemptions=row.preemptions,
    )


def _waiting_state(waiting: WaitingState) -> inspector_pb2.WaitingState:
    return inspector_pb2.WaitingState(
        request_id=waiting.request_id,
        session_number=waiting.session_number,
        prompt_tokens=waiting.prompt_tokens,
        reason=WAITING_REASONS[waiting.reason],
        waited_ms=int(waiting.waited_seconds * 1000),
    )

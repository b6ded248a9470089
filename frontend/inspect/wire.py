"""The Inspector's messages as the page reads them: JSON."""

from __future__ import annotations

import json
from typing import Any

from ttserve.step_words import PHASES, SITES, WAITING_REASONS
from ttserve.v1 import inspector_pb2


def to_json(value: Any) -> str:
    """JSON without a line break, as an event's `data:` wants it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def encode_state(state: inspector_pb2.GetStateResponse) -> str:
    """A picture, under the protocol's names. Written out, because protobuf's own
    JSON takes seven times as long and the event loop has streams to serve.
    """
    return to_json(
        {
            "instance_id": state.instance_id,
            "step_number": state.step_number,
            "paused": state.paused,
            "lanes": [_lane(lane) for lane in state.lanes],
            "sessions": [_session(session) for session in state.sessions],
            "steps_in_flight": state.steps_in_flight,
            "grammars": state.grammars,
            "served_names": list(state.served_names),
            "uptime_seconds": state.uptime_seconds,
        }
    )


def _lane(lane: inspector_pb2.LaneState) -> dict[str, Any]:
    return {
        "lane": lane.lane,
        "rows": [_row_state(row) for row in lane.rows],
        "waiting": [_waiting(entry) for entry in lane.waiting],
        "total_blocks": lane.total_blocks,
        "free_blocks": lane.free_blocks,
        "total_rows": lane.total_rows,
    }


def _row_state(row: inspector_pb2.RowState) -> dict[str, Any]:
    return {
        "row": row.row,
        "request_id": row.request_id,
        "external_request_id": row.external_request_id,
        "session_number": row.session_number,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "computed_tokens": row.computed_tokens,
        "blocks": row.blocks,
        "preemptions": row.preemptions,
    }


def _waiting(entry: inspector_pb2.WaitingState) -> dict[str, Any]:
    return {
        "request_id": entry.request_id,
        "session_number": entry.session_number,
        "prompt_tokens": entry.prompt_tokens,
        "reason": WAITING_REASONS.get(entry.reason, "unknown"),
        "waited_ms": entry.waited_ms,
    }


def _session(session: inspector_pb2.SessionState) -> dict[str, Any]:
    return {
        "session_number": session.session_number,
        "frontend_name": session.frontend_name,
        "peer": session.peer,
        "live_requests": session.live_requests,
        "merged_steps": session.merged_steps,
        "age_seconds": session.age_seconds,
    }


def encode_step(step: inspector_pb2.StepRecord) -> str:
    """A step. Rows are arrays, because there are many: row, request id, external
    request id, start position, tokens, whether it is an intermediate chunk,
    produced tokens, finish reason.
    """
    lanes = [
        {
            "lane": lane.lane,
            "used_blocks": lane.used_blocks,
            "free_blocks": lane.free_blocks,
            "rows": [_row(row) for row in lane.rows],
        }
        for lane in step.lanes
    ]
    return to_json(
        {
            "number": step.number,
            "phase": PHASES.get(step.phase, "unknown"),
            "phase_reason": step.phase_reason,
            "lanes": lanes,
            "scheduled_tokens": step.scheduled_tokens,
            "produced_tokens": step.produced_tokens,
            "sampling_site": SITES.get(step.sampling_site, "unknown"),
            "sampling_reason": step.sampling_reason,
            "overlapped": step.overlapped,
            "overlap_reason": step.overlap_reason,
            "preempted": list(step.preempted_request_ids),
            "host_us": step.host_us,
            "device_us": step.device_us,
            "readback_us": step.readback_us,
            "host_gap_us": step.host_gap_us,
            "unix_seconds": step.unix_seconds,
            "padded_rows": step.padded_rows,
            "waiting": step.waiting_requests,
            "error": step.error,
        }
    )


def _row(row: inspector_pb2.StepRow) -> list[Any]:
    return [
        row.row,
        row.request_id,
        row.external_request_id,
        row.start_position,
        row.tokens,
        row.intermediate_chunk,
        row.produced_tokens,
        row.finish_reason,
    ]

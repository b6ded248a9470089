"""The Inspector's messages as the page reads them: JSON."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import MessageToDict

from ttserve.v1 import inspector_pb2

_PHASES = {
    inspector_pb2.PHASE_PREFILL: "prefill",
    inspector_pb2.PHASE_DECODE: "decode",
}
_SITES = {
    inspector_pb2.SAMPLING_SITE_DEVICE: "device",
    inspector_pb2.SAMPLING_SITE_HOST: "host",
    inspector_pb2.SAMPLING_SITE_NONE: "none",
}


def to_json(value: Any) -> str:
    """JSON without a line break, as an event's `data:` wants it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def encode_state(state: inspector_pb2.GetStateResponse) -> str:
    """All fields under the names of the protocol; 64-bit numbers are strings."""
    return to_json(
        MessageToDict(
            state,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
    )


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
            "phase": _PHASES.get(step.phase, "unknown"),
            "phase_reason": step.phase_reason,
            "lanes": lanes,
            "scheduled_tokens": step.scheduled_tokens,
            "produced_tokens": step.produced_tokens,
            "sampling_site": _SITES.get(step.sampling_site, "unknown"),
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

"""The Inspector's enums as people read them, on the live page and in tt-top."""

from __future__ import annotations

from ttserve.v1 import inspector_pb2

PHASES = {
    inspector_pb2.PHASE_PREFILL: "prefill",
    inspector_pb2.PHASE_DECODE: "decode",
}
SITES = {
    inspector_pb2.SAMPLING_SITE_DEVICE: "device",
    inspector_pb2.SAMPLING_SITE_HOST: "host",
    inspector_pb2.SAMPLING_SITE_NONE: "none",
}
WAITING_REASONS = {
    inspector_pb2.WAITING_REASON_CAPACITY: "capacity",
    inspector_pb2.WAITING_REASON_GRAMMAR: "grammar",
    inspector_pb2.WAITING_REASON_PREEMPTED: "preempted",
}

"""The wall clock may jump, so nothing is decided by it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.(now|utcnow)\b")
SHOWN_ONLY = {
    "device_service/admission.py": "arrival time of vLLM's request record",
    "device_service/gateway/block_log.py": "moments of block events",
    "device_service/gateway/servicer.py": "moments that other gateways are told",
    "device_service/outcome.py": "moment of a step in its record",
    "device_service/recording/recorder.py": "moment at which a recording began",
    "device_service/tracing.py": "moments of spans",
    "ttserve/launcher/output.py": "time in a log line",
}


def test_only_what_people_read_is_taken_from_the_wall_clock() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("device_service", "frontend", "ttserve")
        for path in (ROOT / package).rglob("*.py")
        if WALL_CLOCK.search(path.read_text())
    }
    assert found == set(SHOWN_ONLY)

"""Numbers and names of the protocol that no generated file holds."""

from __future__ import annotations

PROTOCOL_MINOR = 2
"""Minor of `ttserve.v1` that this version speaks; minors only add.

2: `Pong.live_requests`.
"""

OLDEST_PROTOCOL_MINOR = 1
"""Oldest minor of the other side that this version still works with."""

FRAME_BYTES = 262144
"""Most bytes in one SubmissionFrame and in one piece of the tokenizer bundle."""

DEVICE_SERVICE = "ttserve.v1.Device"
INSPECTOR_SERVICE = "ttserve.v1.Inspector"
"""Full service names, as the health service and reflection know them."""

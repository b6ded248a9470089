"""The W3C trace context that a request travels with.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

# Later versions may add fields behind; what is too long to be one is malformed.
_TRACEPARENT = re.compile(
    r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.{0,200})?"
)
_INVALID = "0" * 32, "0" * 16
_MOST_STATE = 512
"""Characters of `tracestate` that must be passed on; longer ones may be dropped."""


def trace_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The trace context among headers or metadata, whose names are in lower case.

    Empty where there is none, or where it is malformed: a client's mistake in it
    must not fail its request.
    """
    found = {name: value for name, value in pairs if name in (TRACEPARENT, TRACESTATE)}
    if not trace_id(found):
        return {}
    if len(found.get(TRACESTATE, "")) > _MOST_STATE:
        del found[TRACESTATE]
    return found


def trace_id(headers: Mapping[str, str] | None) -> str:
    """The trace that headers belong to, 32 hexadecimal digits; empty without one."""
    match = _TRACEPARENT.fullmatch((headers or {}).get(TRACEPARENT, ""))
    if match is None or match[1] == _INVALID[0] or match[2] == _INVALID[1]:
        return ""
    return match[1]

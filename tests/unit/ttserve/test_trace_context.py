"""The W3C trace context: what is passed on, and what is dropped.

Examples and rules are those of https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import pytest

from ttserve.trace_context import trace_headers, trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_the_context_is_taken_and_nothing_else() -> None:
    pairs = [("traceparent", PARENT), ("tracestate", "a=1"), ("authorization", "x")]
    found = trace_headers(pairs)
    assert found == {"traceparent": PARENT, "tracestate": "a=1"}
    assert trace_id(found) == TRACE


def test_a_later_version_may_say_more() -> None:
    later = f"cc-{TRACE}-00f067aa0ba902b7-01-what-the-future-will-be-like"
    assert trace_id({"traceparent": later}) == TRACE


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x" * 1025,
        PARENT.upper(),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT}more",
        f"{PARENT}-{'x' * 5000}",
    ],
)
def test_what_is_malformed_or_endless_is_dropped(parent: str) -> None:
    assert trace_headers([("traceparent", parent), ("tracestate", "a=1")]) == {}


def test_a_long_state_is_dropped_alone() -> None:
    pairs = [("traceparent", PARENT), ("tracestate", "a" * 513)]
    assert trace_headers(pairs) == {"traceparent": PARENT}

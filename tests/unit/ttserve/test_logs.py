"""A JSON line has the fields that docs/METRICS.md promises, and stays one line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any

import pytest

from ttserve.logs import OneObjectPerLine
from ttserve.trace_context import trace_headers, trace_id


def formatted(message: str, *args: object, **changes: Any) -> dict[str, Any]:
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, message, args, None)
    record.__dict__.update(changes)
    line = OneObjectPerLine("me").format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_the_fields_of_a_line() -> None:
    found = formatted(
        "%d rows", 3, created=1_700_000_000.25, request_id="r", trace_id=""
    )
    time = datetime.fromisoformat(found.pop("time"))
    assert time == datetime(2023, 11, 14, 22, 13, 20, 250_000, timezone.utc)
    assert found == {
        "level": "WARNING",
        "logger": "a.b",
        "message": "3 rows",
        "process": "me",
        "request_id": "r",
    }


def test_an_exception_is_a_field_and_odd_values_do_no_harm() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = formatted(
            "failed", exc_info=sys.exc_info(), thing=object(), color_message="x"
        )
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: two\nlines")
    assert "color_message" not in found
    assert "object" in str(found["thing"])


GOOD = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (GOOD, "a" * 32),
        (GOOD + "-later-versions-may-add", "a" * 32),
        ("", ""),
        (GOOD.upper(), ""),
        (f"00-{'0' * 32}-{'b' * 16}-01", ""),
        (f"00-{'a' * 32}-{'0' * 16}-01", ""),
        ("00-1", ""),
    ],
)
def test_trace_ids(value: str, expected: str) -> None:
    assert trace_id({"traceparent": value}) == expected


def test_only_a_sound_context_travels() -> None:
    pairs = [("traceparent", GOOD), ("tracestate", "a=b"), ("cookie", "secret")]
    assert trace_headers(pairs) == {"traceparent": GOOD, "tracestate": "a=b"}
    assert trace_headers([("traceparent", GOOD), ("tracestate", "x" * 600)]) == {
        "traceparent": GOOD
    }
    assert trace_headers([("tracestate", "a=b")]) == {}

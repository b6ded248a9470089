"""Constraints hold for each request of a full, mixed batch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.tt.server import Server, together

CHOICES = ["red", "green", "blue"]
REGEX = r"[a-z]{3}-[0-9]{2}"
SCHEMA = {
    "type": "object",
    "properties": {
        "size": {"enum": ["small", "large"]},
        "count": {"enum": [1, 2, 3]},
        "good": {"type": "boolean"},
    },
    "required": ["size", "count", "good"],
    "additionalProperties": False,
}


def is_choice(text: str) -> None:
    assert text in CHOICES


def is_match(text: str) -> None:
    assert re.fullmatch(REGEX, text)


def is_object(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["size", "count", "good"]
    assert value["size"] in ("small", "large")
    assert value["count"] in (1, 2, 3)
    assert isinstance(value["good"], bool)


def is_plain(text: str) -> None:
    assert text.strip()


Kind = tuple[str, int, dict[str, Any], Callable[[str], None]]
KINDS: dict[str, Kind] = {
    "choice": (
        "Pick a colour.",
        8,
        {"structured_outputs": {"choice": CHOICES}},
        is_choice,
    ),
    "regex": (
        "Make up a product code.",
        16,
        {"structured_outputs": {"regex": REGEX}},
        is_match,
    ),
    "json": (
        "Describe a box as JSON.",
        64,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "box", "schema": SCHEMA},
            }
        },
        is_object,
    ),
    "plain": ("Say something nice.", 16, {}, is_plain),
}


def ask(server: Server, kind: str, budget: int, **more: Any) -> None:
    question, limit, options, check = KINDS[kind]
    choice = server.chat(question, max_tokens=limit + budget, **(options | more))
    check(choice.message.content or "")


@pytest.mark.feature(133)
@pytest.mark.parametrize("kind", KINDS)
def test_one_alone(server: Server, kind: str, reasoning_budget: int) -> None:
    ask(server, kind, reasoning_budget)


@pytest.mark.feature(133)
@pytest.mark.parametrize(("temperature", "copies"), [(0.0, 2), (1.0, 8)])
def test_mixed_batches(
    server: Server, temperature: float, copies: int, reasoning_budget: int
) -> None:
    """32 chats of four kinds fill a server of the usual size."""
    calls = [
        partial(ask, server, kind, reasoning_budget, temperature=temperature)
        for kind in list(KINDS) * copies
    ]
    together(calls)


@pytest.mark.feature(21)
@pytest.mark.edge(40)
def test_no_idle_whitespace(server: Server) -> None:
    question, limit, options, _ = KINDS["json"]
    text = server.chat(question, max_tokens=limit, **options).message.content
    value = json.loads(text)
    compact = json.dumps(value, separators=(",", ":"))
    assert text in (json.dumps(value), compact)

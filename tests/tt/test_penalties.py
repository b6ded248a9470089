"""Penalties change what is repeated, for the request that asks for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.tt.server import Server, together

PROMPT = "one two three one two three one two three one two three one two"
PENALTIES: list[dict[str, Any]] = [
    {"frequency_penalty": 2.0},
    {"presence_penalty": 2.0},
    {"repetition_penalty": 1.8},
]


def repeated(token_ids: list[int]) -> int:
    """How often tokens come again."""
    return len(token_ids) - len(set(token_ids))


@pytest.mark.feature(123)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_penalty_makes_less_come_again(
    server: Server, penalty: dict[str, Any]
) -> None:
    free = server.complete(PROMPT, max_tokens=20).token_ids
    held = server.complete(PROMPT, max_tokens=20, **penalty).token_ids
    assert repeated(held) < repeated(free)


@pytest.mark.feature(123, 128)
def test_a_penalty_is_of_its_request_only(server: Server) -> None:
    alone = [server.complete(PROMPT, **p).token_ids for p in [{}, *PENALTIES]]
    calls = [partial(server.complete, PROMPT, **p) for p in [{}, *PENALTIES]]
    assert [answer.token_ids for answer in together(calls * 2)] == alone * 2


@pytest.mark.feature(123)
def test_negative_penalties_reward(server: Server) -> None:
    held = server.complete(PROMPT, max_tokens=20, frequency_penalty=1.0).token_ids
    favoured = server.complete(PROMPT, max_tokens=20, frequency_penalty=-2.0).token_ids
    assert repeated(favoured) > repeated(held)

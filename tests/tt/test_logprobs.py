"""Log probabilities of what was sampled and of what was near."""

from __future__ import annotations

import math
from functools import partial

import openai
import pytest

from tests.tt.server import Server, together

PROMPT = "The sun rises in the"


@pytest.mark.parametrize("count", [1, 20])
def test_the_sampled_token_leads_when_greedy(server: Server, count: int) -> None:
    shown = server.complete(PROMPT, logprobs=count, max_tokens=6).logprobs
    for chosen, best in zip(shown.token_logprobs, shown.top_logprobs, strict=True):
        values = list(best.values())
        assert count <= len(values) <= count + 1
        assert values == sorted(values, reverse=True)
        assert chosen == max(values) <= 0.0
        assert sum(map(math.exp, values)) <= 1.0 + 1e-3


@pytest.mark.feature(126)
def test_zero_is_the_sampled_token_alone(server: Server) -> None:
    answer = server.complete(PROMPT, temperature=1.0, seed=5, logprobs=0, max_tokens=6)
    assert len(answer.logprobs.token_logprobs) == 6
    assert all(value <= 0.0 for value in answer.logprobs.token_logprobs)
    plain = server.complete(PROMPT, temperature=1.0, seed=5, max_tokens=6)
    assert answer.token_ids == plain.token_ids


@pytest.mark.edge(41)
def test_a_sampled_token_has_its_own_value(server: Server) -> None:
    """Also when it is none of the best that were asked for."""
    shown = server.complete(
        PROMPT, temperature=1.5, seed=11, logprobs=2, max_tokens=12
    ).logprobs
    for token, chosen, best in zip(
        shown.tokens, shown.token_logprobs, shown.top_logprobs, strict=True
    ):
        assert best[token] == pytest.approx(chosen, abs=1e-6)


def test_only_who_asks_gets_them(server: Server) -> None:
    calls = [
        partial(server.complete, PROMPT, logprobs=3),
        partial(server.complete, PROMPT),
    ]
    asked, plain = together(calls)
    assert asked.logprobs is not None
    assert plain.logprobs is None
    assert asked.token_ids == plain.token_ids


def test_chats_have_them_too(server: Server) -> None:
    choice = server.chat("Say hello.", max_tokens=5, logprobs=True, top_logprobs=3)
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)


@pytest.mark.feature(20)
def test_more_than_twenty_are_refused(server: Server) -> None:
    with pytest.raises(openai.BadRequestError):
        server.complete(PROMPT, logprobs=21)


@pytest.mark.feature(127)
def test_those_of_the_prompt_are_refused(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        server.complete(PROMPT, prompt_logprobs=1)

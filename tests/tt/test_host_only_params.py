"""Parameters that a device does not know are honoured all the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.tt.server import Server, together

PROMPT = "The best way to learn a language is"


@pytest.mark.feature(124)
def test_bad_words_do_not_come(server: Server, reasoning_budget: int) -> None:
    """A short word, which is one token with and without a space before it: vLLM
    bans no other spelling of a word.
    """
    limit = 100 + reasoning_budget

    def words(**options: Any) -> list[str]:
        choice = server.chat(
            "Name the colour of the sky on a clear day, in one short sentence.",
            max_tokens=limit,
            logprobs=True,
            **options,
        )
        return [entry.token for entry in choice.logprobs.content]

    before = words()
    alone = [
        word
        for word, following in zip(before, before[1:], strict=False)
        if word[:1] == " " and word[1:].isalpha() and not following[:1].isalpha()
    ]
    word = min(alone, key=len)
    after = words(bad_words=[word.strip()])
    assert after
    assert word not in after
    assert word.strip() not in after


@pytest.mark.feature(124)
def test_nothing_but_allowed_tokens_comes(server: Server) -> None:
    known = sorted(set(server.complete(PROMPT, max_tokens=12).token_ids))[:3]
    answer = server.complete(PROMPT, temperature=1.0, allowed_token_ids=known)
    assert set(answer.token_ids) <= set(known)


@pytest.mark.feature(124)
def test_logit_bias_forces_and_forbids(server: Server) -> None:
    first, second = server.complete(PROMPT, max_tokens=2).token_ids
    forced = server.complete(PROMPT, max_tokens=4, logit_bias={str(second): 100})
    assert forced.token_ids == [second] * 4
    forbidden = server.complete(PROMPT, max_tokens=8, logit_bias={str(first): -100})
    assert first not in forbidden.token_ids


@pytest.mark.feature(124)
def test_min_p_of_one_leaves_the_best(server: Server) -> None:
    answer = server.complete(PROMPT, temperature=1.5, min_p=1.0)
    assert answer.token_ids == server.complete(PROMPT).token_ids


@pytest.mark.feature(124)
def test_min_tokens_hold_off_a_stop(server: Server) -> None:
    stop = server.complete(PROMPT, max_tokens=3).token_ids[0]
    early = server.complete(PROMPT, stop_token_ids=[stop])
    late = server.complete(PROMPT, stop_token_ids=[stop], min_tokens=5)
    assert early.token_ids == [stop]
    assert early.finish_reason == "stop"
    assert len(late.token_ids) > 5 or late.finish_reason == "length"
    assert stop not in late.token_ids[:5]


@pytest.mark.feature(124, 128)
def test_they_are_each_requests_own(server: Server) -> None:
    plain = server.complete(PROMPT)
    token = plain.token_ids[0]
    calls = [
        partial(server.complete, PROMPT),
        partial(server.complete, PROMPT, logit_bias={str(token): -100}),
        partial(server.complete, PROMPT, temperature=1.0, allowed_token_ids=[token]),
        partial(server.complete, PROMPT, temperature=1.0, min_p=1.0),
    ]
    free, biased, allowed, sure = together(calls)
    assert free.token_ids == sure.token_ids == plain.token_ids
    assert token not in biased.token_ids
    assert set(allowed.token_ids) == {token}

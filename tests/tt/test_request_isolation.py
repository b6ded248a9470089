"""Requests that run together keep to themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.tt.server import Server, together

PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time there was a",
    "The three primary colours are",
]


@pytest.mark.feature(128)
def test_each_request_has_its_own_length(server: Server) -> None:
    lengths = [1, 5, 9, 14, 3, 20, 2, 11]
    answers = together(
        [
            partial(server.complete, PROMPTS[i % 4], max_tokens=length)
            for i, length in enumerate(lengths)
        ]
    )
    assert [len(answer.token_ids) for answer in answers] == lengths
    assert {answer.finish_reason for answer in answers} == {"length"}


@pytest.mark.feature(128)
def test_greedy_answers_do_not_depend_on_neighbours(server: Server) -> None:
    alone = [server.complete(prompt).token_ids for prompt in PROMPTS]
    others: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 1.5, "top_k": 40, "seed": 3},
        {"frequency_penalty": 1.5},
        {"temperature": 0.7, "top_p": 0.8, "logprobs": 3},
    ]
    calls = [partial(server.complete, prompt) for prompt in PROMPTS]
    calls += [partial(server.complete, "Some say that", **other) for other in others]
    assert [answer.token_ids for answer in together(calls)[:4]] == alone


@pytest.mark.feature(121, 128)
def test_seeded_answers_do_not_depend_on_neighbours(server: Server) -> None:
    seeded: dict[str, Any] = {"temperature": 1.0, "seed": 42}
    alone = server.complete(PROMPTS[2], **seeded).token_ids
    calls = [partial(server.complete, PROMPTS[2], **seeded)]
    calls += [
        partial(server.complete, PROMPTS[i % 4], temperature=1.0, seed=i, max_tokens=8)
        for i in range(7)
    ]
    assert together(calls)[0].token_ids == alone


@pytest.mark.feature(128, 151)
def test_each_request_has_its_own_stop(server: Server) -> None:
    whole = server.complete(PROMPTS[0], max_tokens=24)
    half = len(whole.text) // 2
    stop = whole.text[half : half + 4]
    calls = [
        partial(server.complete, PROMPTS[0], max_tokens=24, stop=[stop]),
        partial(server.complete, PROMPTS[0], max_tokens=24),
    ]
    stopped, free = together(calls)
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert free.text == whole.text

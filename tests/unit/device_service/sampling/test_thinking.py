"""Thinking budgets end reasoning after so many tokens, request by request."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import pytest
import torch
from vllm.config import VllmConfig
from vllm.config.reasoning import ReasoningConfig
from vllm.v1.request import Request

from device_service.sampling.host_sampler import HostSampler
from tests.unit.device_service.sampling.batches import make_request, row_of

VOCAB = 320
MUSING, START, END = 65, ord("{"), [ord("}"), ord("!")]


@pytest.fixture
def sampler(config: VllmConfig) -> HostSampler:
    reasoning = ReasoningConfig(reasoning_start_str="{", reasoning_end_str="}!")
    reasoning.initialize_token_ids(config.model_config)
    changed = copy(config)
    changed.reasoning_config = reasoning
    return HostSampler(changed, VOCAB, 8, position_keyed_seeds=True)


def think(sampler: HostSampler, *requests: Request) -> None:
    """One step in which the model wants to muse on in every row."""
    logits = torch.zeros(len(requests), VOCAB)
    logits[:, MUSING] = 10.0
    rows = [row_of(request, row) for row, request in enumerate(requests)]
    tokens = sampler.sample(logits, rows, None).token_ids
    for request, token in zip(requests, tokens, strict=True):
        request.append_output_token_ids(token)


def thinker(budget: int | None) -> Request:
    return make_request(
        prompt=[1, 2, START], temperature=0.0, thinking_token_budget=budget
    )


def test_reasoning_ends_when_the_budget_is_spent(sampler: HostSampler) -> None:
    assert sampler.serves_thinking_budget
    request = thinker(4)
    for _ in range(8):
        think(sampler, request)
    assert list(request.output_token_ids) == [MUSING] * 4 + END + [MUSING] * 2


def test_budgets_in_one_batch_are_apart(sampler: HostSampler) -> None:
    """Rows change places, one sits out, one has no budget at all."""
    a, b, free = thinker(2), thinker(5), thinker(None)
    think(sampler, a, b, free)
    think(sampler, free, a)
    think(sampler, b, a)
    for _ in range(6):
        think(sampler, b, free, a)
    assert list(a.output_token_ids)[:4] == [MUSING] * 2 + END
    assert list(b.output_token_ids)[:7] == [MUSING] * 5 + END
    assert set(free.output_token_ids) == {MUSING}
    for request in (a, b, free):
        sampler.release(request.request_id)
    assert sampler.held == 0


def test_without_reasoning_marks_budgets_are_not_served(
    make_sampler: Callable[..., HostSampler],
) -> None:
    assert not make_sampler().serves_thinking_budget

"""Draws are fair, errors stay in their row, nothing is kept of who is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.sampling_params import StructuredOutputsParams

from device_service.records import Sampled
from device_service.sampling.host_sampler import HostSampler
from tests.unit.device_service.sampling.batches import (
    allow_all,
    allow_only,
    make_request,
    random_logits,
    row_of,
)
from ttserve.errors import Reason

VOCAB = 320
WIDE = 9733


def frequencies(
    sampler: HostSampler, logits: torch.Tensor, draws: int, **sampling: Any
) -> torch.Tensor:
    """How often each token is drawn from the same logits, unseeded."""
    rows = [row_of(make_request(**sampling))] * 500
    counts = torch.zeros(logits.shape[0], dtype=torch.float64)
    for _ in range(draws // 500):
        drawn = sampler.sample(logits.repeat(500, 1), rows, None).token_ids
        counts += torch.bincount(torch.tensor(drawn), minlength=logits.shape[0])
    return counts / counts.sum()


def variation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().sum()) / 2


@pytest.mark.parametrize("vocab", [VOCAB, WIDE])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_unseeded_draws_follow_softmax(
    make_sampler: Callable[..., HostSampler], vocab: int, temperature: float
) -> None:
    logits = torch.full((vocab,), -30.0)
    logits[:: vocab // 12] = torch.linspace(-2.0, 2.0, len(logits[:: vocab // 12]))
    drawn = frequencies(make_sampler(vocab), logits, 32_000, temperature=temperature)
    expected = (logits.double() / temperature).softmax(0)
    assert variation(drawn, expected) < 0.02


def test_draws_from_a_short_list_follow_softmax_over_it(
    make_sampler: Callable[..., HostSampler],
) -> None:
    logits = random_logits(4, 1, WIDE)[0]
    drawn = frequencies(make_sampler(WIDE), logits, 32_000, top_k=5, temperature=1.4)
    kept = logits.topk(5)
    expected = torch.zeros(WIDE, dtype=torch.float64)
    expected[kept.indices] = (kept.values.double() / 1.4).softmax(0)
    assert variation(drawn, expected) < 0.02


@pytest.mark.parametrize("keyed", [True, False])
def test_seeded_draws_follow_softmax(
    make_sampler: Callable[..., HostSampler], *, keyed: bool
) -> None:
    sampler = make_sampler(position_keyed_seeds=keyed)
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, :6] = torch.linspace(-1.0, 1.0, 6)
    request = make_request(seed=123)
    counts = torch.zeros(VOCAB, dtype=torch.float64)
    for begin in range(0, 8000, 1000):
        rows = [row_of(request, position=begin + i) for i in range(1000)]
        drawn = sampler.sample(logits.repeat(1000, 1), rows, None).token_ids
        counts += torch.bincount(torch.tensor(drawn), minlength=VOCAB)
    assert variation(counts / 8000, logits[0].double().softmax(0)) < 0.02


@pytest.mark.edge(17, "42b")
@pytest.mark.feature(121, 122)
@pytest.mark.parametrize("seed", [0, 1, -1234567, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("cut", [{}, {"top_k": 20}, {"top_p": 0.7}])
def test_a_seed_repeats_in_any_row_and_in_any_order(
    make_sampler: Callable[..., HostSampler], seed: int, cut: dict[str, Any]
) -> None:
    logits = random_logits(2, 12, WIDE)
    request = make_request(seed=seed, **cut)
    rows = [row_of(request, row, position=97 * row) for row in range(12)]
    together = make_sampler(WIDE).sample(logits.clone(), rows, None).token_ids
    backwards = make_sampler(WIDE).sample(logits.flip(0), rows[::-1], None).token_ids
    assert together == backwards[::-1]
    assert len(set(together)) > 3


def test_a_seeded_draw_is_the_same_from_a_list_and_from_the_vocabulary(
    make_sampler: Callable[..., HostSampler],
) -> None:
    """So a device that samples among the best 32 chooses what the host chooses."""
    sampler = make_sampler(WIDE)
    logits = random_logits(2, 200, WIDE) * 2
    for place in range(200):
        listed = make_request(seed=place, top_k=20)
        kept = logits[place : place + 1].clone()
        kept[kept < kept.topk(20).values[0, -1]] = -torch.inf
        whole = make_request(seed=place)
        [a] = sampler.sample(
            logits[place : place + 1], [row_of(listed)], None
        ).token_ids
        [b] = sampler.sample(kept, [row_of(whole)], None).token_ids
        assert a == b


@pytest.mark.edge(37)
@pytest.mark.feature(120)
@pytest.mark.parametrize("top_p", [1.0, 0.5, 0.01])
def test_top_k_of_one_is_greedy(
    make_sampler: Callable[..., HostSampler], top_p: float
) -> None:
    logits = random_logits(1, 64, WIDE)
    logits[0] = 0.0
    best = logits.argmax(dim=1).tolist()
    rows = [row_of(make_request(top_k=1, top_p=top_p, temperature=2.0))] * 64
    assert make_sampler(WIDE).sample(logits, rows, None).token_ids == best


@pytest.mark.feature(121)
def test_unseeded_requests_do_not_repeat(
    make_sampler: Callable[..., HostSampler],
) -> None:
    logits = torch.zeros(1, VOCAB)
    runs = []
    for _ in range(2):
        sampler = make_sampler()
        torch.manual_seed(0)
        rows = [row_of(make_request())] * 32
        runs.append(sampler.sample(logits.repeat(32, 1), rows, None).token_ids)
    assert runs[0] != runs[1]


# -- errors ------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "unseeded": {},
    "seeded": {"seed": 4},
    "listed": {"top_k": 9},
    "nucleus": {"top_p": 0.5},
    "min_p": {"min_p": 0.2, "seed": 1},
    "beyond the list": {"top_k": 300},
}


def sample_beside_a_healthy_row(
    sampler: HostSampler, spoilt: torch.Tensor, sampling: dict[str, Any]
) -> Sampled:
    logits = torch.stack((random_logits(0, 1, WIDE)[0], spoilt))
    rows = [row_of(make_request(logprobs=2, **sampling)) for _ in range(2)]
    return sampler.sample(logits, rows, None)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("way", WAYS)
def test_logits_that_are_no_numbers_fail_their_row_only(
    make_sampler: Callable[..., HostSampler], way: str, value: float, *, keyed: bool
) -> None:
    spoilt = random_logits(1, 1, WIDE)[0]
    spoilt[WIDE // 2] = value
    sampler = make_sampler(WIDE, position_keyed_seeds=keyed)
    sampled = sample_beside_a_healthy_row(sampler, spoilt, WAYS[way])
    assert set(sampled.errors) == {1}
    assert sampled.errors[1].reason is Reason.STEP_FAILED
    assert sampled.logprobs[0] is not None
    assert sampled.logprobs[1] is None


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_in_which_all_is_forbidden_fails_alone(
    make_sampler: Callable[..., HostSampler], way: str, *, keyed: bool
) -> None:
    spoilt = torch.full((WIDE,), -torch.inf)
    sampler = make_sampler(WIDE, position_keyed_seeds=keyed)
    sampled = sample_beside_a_healthy_row(sampler, spoilt, WAYS[way])
    assert set(sampled.errors) == {1}
    assert sampled.errors[1].reason is Reason.INVALID_FIELD


@pytest.mark.parametrize("way", WAYS)
def test_a_grammar_without_a_legal_token_is_its_requests_error(
    make_sampler: Callable[..., HostSampler], way: str
) -> None:
    mask = allow_all(2, WIDE)
    mask[1] = 0
    structured = StructuredOutputsParams(json_object=True)
    rows = [
        row_of(make_request(**WAYS[way])),
        row_of(make_request(structured_outputs=structured, **WAYS[way])),
    ]
    sampled = make_sampler(WIDE).sample(random_logits(0, 2, WIDE), rows, mask)
    assert set(sampled.errors) == {1}
    assert sampled.errors[1].reason is Reason.GRAMMAR


@pytest.mark.parametrize("way", WAYS)
def test_the_grammar_masks_before_everything(
    make_sampler: Callable[..., HostSampler], way: str
) -> None:
    request = make_request(logit_bias={9: 100.0}, **WAYS[way])
    logits = random_logits(0, 1, WIDE)
    mask = allow_only([5, WIDE - 1], WIDE)
    sampled = make_sampler(WIDE).sample(logits, [row_of(request)], mask)
    assert not sampled.errors
    assert sampled.token_ids[0] in (5, WIDE - 1)


# -- what is kept ------------------------------------------------------------


def test_no_rows_no_tokens(make_sampler: Callable[..., HostSampler]) -> None:
    assert make_sampler().sample(torch.empty(0, VOCAB), [], None) == Sampled([], [])


@pytest.mark.parametrize("keyed", [True, False])
def test_nothing_is_kept_of_released_requests(
    make_sampler: Callable[..., HostSampler], *, keyed: bool
) -> None:
    sampler = make_sampler(position_keyed_seeds=keyed)
    requests = [
        make_request(seed=i, repetition_penalty=1.1, min_tokens=2, logit_bias={1: 1.0})
        for i in range(20)
    ]
    rows = [row_of(request, i) for i, request in enumerate(requests)]
    sampler.sample(random_logits(0, 20, VOCAB), rows, None)
    assert sampler.held > 0
    ghosts = [weakref.ref(request) for request in requests]
    for request in requests:
        sampler.release(request.request_id)
        sampler.release(request.request_id)
    assert sampler.held == 0
    # The compact batch of vLLM's processors is told anew at the next step.
    sampler.sample(
        random_logits(0, 1, VOCAB), [row_of(make_request(min_tokens=1))], None
    )
    del requests, rows, request
    assert [ghost() for ghost in ghosts] == [None] * 20


def test_inference_tensors_may_come_in(
    make_sampler: Callable[..., HostSampler],
) -> None:
    with torch.inference_mode():
        logits = random_logits(0, 3, VOCAB)
    rows = [row_of(make_request(temperature=t, min_p=0.1)) for t in (0.5, 1.0, 2.0)]
    sampler = make_sampler()
    assert len(sampler.sample(logits, rows, allow_all(3, VOCAB)).token_ids) == 3

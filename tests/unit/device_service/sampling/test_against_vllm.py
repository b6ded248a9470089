"""One row, all features: the same choice and the same support as vLLM's sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams

from device_service.sampling.host_sampler import HostSampler
from tests.unit.device_service.sampling.batches import (
    make_request,
    random_logits,
    row_of,
)
from tests.unit.device_service.sampling.reference import (
    vllm_drawn_from,
    vllm_sample,
)

VOCABS = [320, 9733]

CONSTRAINTS: dict[str, dict[str, Any]] = {
    "none": {},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -1.0},
    "repetition": {"repetition_penalty": 1.7},
    "all penalties": {
        "presence_penalty": -0.5,
        "frequency_penalty": 0.7,
        "repetition_penalty": 0.6,
    },
    "logit bias": {"logit_bias": {5: 40.0, 9: -100.0}},
    "allowed ids": {"allowed_token_ids": [3, 77, 200]},
    "bad words": {"_bad_words_token_ids": [[7], [20, 21], [20, 20]]},
    "min tokens": {"min_tokens": 4, "stop_token_ids": [30, 31]},
    "min tokens reached": {"min_tokens": 3, "stop_token_ids": [30, 31]},
    "everything": {
        "presence_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {5: 3.0, 30: 9.0},
        "allowed_token_ids": list(range(0, 300, 3)),
        "_bad_words_token_ids": [[9], [20, 21]],
        "min_tokens": 9,
        "stop_token_ids": [30, 33],
    },
}
CUTS: dict[str, dict[str, Any]] = {
    "none": {},
    "hot": {"temperature": 1.9},
    "cold": {"temperature": 0.3},
    "top_k": {"top_k": 7},
    "top_k of the short list": {"top_k": 256},
    "top_k beyond it": {"top_k": 300},
    "top_p": {"top_p": 0.9},
    "small top_p": {"top_p": 0.01},
    "top_p of nearly all": {"top_p": 0.9999, "temperature": 2.0},
    "min_p": {"min_p": 0.05},
    "min_p below the short list": {"min_p": 1e-7, "temperature": 2.0},
    "top_k and top_p": {"top_k": 40, "top_p": 0.8, "temperature": 1.3},
    "top_k beyond it and top_p": {"top_k": 300, "top_p": 0.6, "temperature": 2.0},
    "min_p and top_p": {"min_p": 1e-5, "top_p": 0.6, "temperature": 2.0},
    "all": {"top_k": 200, "top_p": 0.95, "min_p": 0.001, "temperature": 1.7},
}
OUTPUT = (20, 5, 20)


@pytest.mark.feature(123, 124)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_greedy_rows_choose_the_same_token(
    config: VllmConfig,
    make_sampler: Callable[..., HostSampler],
    constraint: str,
    vocab: int,
) -> None:
    params = CONSTRAINTS[constraint]
    sampler = make_sampler(vocab)
    for seed in range(4):
        request = make_request(temperature=0.0, output=OUTPUT, **params)
        logits = random_logits(seed, 1, vocab)
        logits[0, 20:34] += 8.0
        expected = vllm_sample(config, request, logits[0]).sampled_token_ids[0, 0]
        sampled = sampler.sample(logits, [row_of(request)], None)
        assert sampled.token_ids == [int(expected)]


@pytest.mark.feature(124)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("constraint", ["none", "everything"])
def test_random_rows_draw_from_the_same_tokens(
    config: VllmConfig,
    make_sampler: Callable[..., HostSampler],
    constraint: str,
    cut: str,
    vocab: int,
) -> None:
    """Every one of many draws lies in vLLM's support, and the best are drawn."""
    params = CUTS[cut] | CONSTRAINTS[constraint]
    sampler = make_sampler(vocab)
    request = make_request(output=OUTPUT, **params)
    logits = random_logits(7, 1, vocab)
    allowed = vllm_drawn_from(config, request, logits[0])
    rows = [row_of(request)] * 150
    drawn = sampler.sample(logits.repeat(150, 1), rows, None).token_ids
    assert allowed[drawn].isfinite().all()
    likely = (allowed.softmax(0) > 0.1).nonzero()[:, 0].tolist()
    assert set(likely) <= set(drawn)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("cut", CUTS)
def test_processed_logits_are_vllms(
    config: VllmConfig,
    make_sampler: Callable[..., HostSampler],
    cut: str,
    vocab: int,
) -> None:
    sampler = make_sampler(vocab, logprobs_mode="processed_logits")
    request = make_request(
        output=OUTPUT, logprobs=vocab, **(CUTS[cut] | CONSTRAINTS["all penalties"])
    )
    logits = random_logits(3, 1, vocab)
    expected = vllm_drawn_from(config, request, logits[0])
    sampled = sampler.sample(logits, [row_of(request)], None)
    shown = sampled.logprobs[0]
    assert shown is not None
    values = torch.empty(vocab)
    values[shown.top_ids] = torch.tensor(shown.top_values)
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
    assert shown.chosen == values[sampled.token_ids[0]]


def test_generator_rows_give_vllms_stream(
    config: VllmConfig, make_sampler: Callable[..., HostSampler]
) -> None:
    """With `position_keyed_seeds` off, a seeded request draws as in vLLM."""
    sampler = make_sampler(9733, position_keyed_seeds=False)
    generator = torch.Generator().manual_seed(-77)
    request = make_request(seed=-77, temperature=0.8)
    for step in range(20):
        logits = random_logits(step, 1, 9733)
        expected = vllm_sample(config, request, logits[0], generator=generator)
        token = sampler.sample(logits, [row_of(request)], None).token_ids[0]
        assert token == int(expected.sampled_token_ids[0, 0])
        request.append_output_token_ids(token)
    sampler.release(request.request_id)
    assert sampler.held == 0


@pytest.mark.parametrize("asked", [0.0, 1e-7, 1e-5, 0.005, 0.01])
def test_tiny_temperatures_are_what_vllm_makes_of_them(
    make_sampler: Callable[..., HostSampler], asked: float
) -> None:
    """Zero is greedy; anything up to 0.01 is drawn at 0.01."""
    params = SamplingParams(temperature=asked, seed=1)
    assert params.temperature == (0.01 if asked else 0.0)
    logits = torch.full((50, 320), -1.0)
    logits[:, 7], logits[:, 9] = 0.0, -0.005
    rows = [row_of(make_request(params), 0, position=i) for i in range(50)]
    chosen = make_sampler().sample(logits, rows, None).token_ids
    assert set(chosen) == ({7, 9} if asked else {7})

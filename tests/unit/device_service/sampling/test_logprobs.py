"""Log probabilities and ranks: brute force, and vLLM's own gathering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.v1.sample.sampler import Sampler

from device_service.records import TokenLogprobs
from device_service.sampling.host_sampler import HostSampler
from tests.unit.device_service.sampling.batches import (
    allow_only,
    make_request,
    random_logits,
    row_of,
)

VOCAB = 320


def logprobs_of(
    sampler: HostSampler, logits: torch.Tensor, **sampling: Any
) -> tuple[int, TokenLogprobs]:
    request = make_request(**sampling)
    sampled = sampler.sample(logits.clone()[None], [row_of(request)], None)
    sampler.release(request.request_id)
    assert sampled.logprobs[0] is not None
    return sampled.token_ids[0], sampled.logprobs[0]


def test_raw_logprobs_by_brute_force(make_sampler: Callable[..., HostSampler]) -> None:
    sampler = make_sampler()
    for seed in range(20):
        logits = random_logits(seed, 1, VOCAB)[0]
        token, shown = logprobs_of(
            sampler, logits, logprobs=5, temperature=1.5, top_k=50, logit_bias={4: 50.0}
        )
        everything = logits.double().softmax(0).log()
        order = everything.argsort(descending=True)
        assert shown.chosen == pytest.approx(float(everything[token]), abs=1e-5)
        assert shown.chosen_rank == order.tolist().index(token) + 1
        assert shown.top_ids == order[:5].tolist()
        assert shown.top_values == pytest.approx(
            everything[order[:5]].tolist(), abs=1e-5
        )


@pytest.mark.parametrize("vocab", [VOCAB, 9733])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_vllm_gathers_the_same(
    make_sampler: Callable[..., HostSampler], vocab: int, count: int
) -> None:
    sampler = make_sampler(vocab)
    logits = random_logits(count, 9, vocab)
    logits[0] = 0.0
    rows = [row_of(make_request(logprobs=count, seed=i)) for i in range(9)]
    sampled = sampler.sample(logits.clone(), rows, None)
    expected = Sampler.gather_logprobs(
        Sampler.compute_logprobs(logits), count, torch.tensor(sampled.token_ids)
    )
    for place, shown in enumerate(sampled.logprobs):
        assert shown is not None
        assert shown.chosen == expected.logprobs[place, 0]
        assert shown.chosen_rank == expected.selected_token_ranks[place]
        assert shown.top_values == expected.logprobs[place, 1:].tolist()
        if place:
            assert shown.top_ids == expected.logprob_token_ids[place, 1:].tolist()
    # Where all tokens are equal, they all rank last.
    assert sampled.logprobs[0] is not None
    assert sampled.logprobs[0].chosen_rank == vocab


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
def test_logits_modes(make_sampler: Callable[..., HostSampler], mode: str) -> None:
    sampler = make_sampler(logprobs_mode=mode)
    logits = random_logits(5, 1, VOCAB)[0]
    bias = {int(logits.argmin()): 60.0}
    token, shown = logprobs_of(
        sampler, logits, logprobs=1, temperature=0.0, logit_bias=bias
    )
    assert token in bias
    if mode == "raw_logits":
        assert shown.chosen == logits[token]
        assert shown.chosen_rank == VOCAB
    else:
        assert shown.chosen == logits[token] + 60.0
        assert shown.top_ids == [token]


def test_processed_logprobs_are_of_what_was_drawn_from(
    make_sampler: Callable[..., HostSampler],
) -> None:
    sampler = make_sampler(logprobs_mode="processed_logprobs")
    logits = random_logits(6, 1, VOCAB)[0]
    token, shown = logprobs_of(sampler, logits, logprobs=4, temperature=0.7, top_k=3)
    kept = (logits / 0.7).topk(3)
    assert token in kept.indices.tolist()
    expected = kept.values.log_softmax(0).tolist()
    assert shown.top_values[:3] == pytest.approx(expected, abs=1e-5)
    assert shown.top_values[3] == -torch.inf
    greedy, alone = logprobs_of(sampler, logits, logprobs=1, temperature=0.7, top_k=1)
    assert greedy == int(logits.argmax())
    assert alone == TokenLogprobs(0.0, 1, [greedy], [0.0])


def test_named_tokens_are_answered_in_the_order_asked(
    make_sampler: Callable[..., HostSampler],
) -> None:
    logits = random_logits(8, 1, VOCAB)[0]
    _, shown = logprobs_of(make_sampler(), logits, logprob_token_ids=[9, 300, 2])
    assert shown.top_ids == [9, 300, 2]
    expected = logits.log_softmax(0)[[9, 300, 2]].tolist()
    assert shown.top_values == pytest.approx(expected, abs=1e-5)


def test_logprobs_are_those_under_the_grammar(
    make_sampler: Callable[..., HostSampler],
) -> None:
    """vLLM masks before it samples, so forbidden tokens have no probability."""
    sampler = make_sampler()
    request = make_request(logprobs=3, temperature=0.0)
    logits = random_logits(9, 1, VOCAB)
    mask = allow_only([1, 2], VOCAB)
    expected = sorted(logits[0, [1, 2]].log_softmax(0).tolist(), reverse=True)
    sampled = sampler.sample(logits, [row_of(request)], mask)
    shown = sampled.logprobs[0]
    assert shown is not None
    assert set(shown.top_ids[:2]) == {1, 2}
    assert shown.top_values[:2] == pytest.approx(expected, abs=1e-5)
    assert shown.top_values[2] == -torch.inf


def test_only_rows_that_ask_get_logprobs_each_its_own_count(
    make_sampler: Callable[..., HostSampler],
) -> None:
    sampler = make_sampler()
    counts = [None, 0, 7, 2, None, 7]
    rows = [row_of(make_request(logprobs=count)) for count in counts]
    sampled = sampler.sample(random_logits(1, 6, VOCAB), rows, None)
    lengths = [
        None if shown is None else len(shown.top_ids) for shown in sampled.logprobs
    ]
    assert lengths == counts

"""The device's sampler against the host's and against vLLM's, on the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams

from device_service.mesh.sampling_params import sampling_params
from device_service.models.device_sampler import (
    NO_TOKEN,
    TOP_LOGPROBS,
    DeviceSampler,
    History,
    Program,
    SampledTokens,
)
from device_service.records import Sampled
from device_service.sampling.facts import PADDING, SamplingFacts
from device_service.sampling.host_sampler import HostSampler
from tests.unit.device_service.sampling.batches import (
    PROMPT,
    allow_only,
    make_request,
    random_logits,
    row_of,
)
from tests.unit.device_service.sampling.conftest import VOCAB, SamplerMaker
from tests.unit.device_service.sampling.reference import vllm_drawn_from

OUTPUT = (20, 21, 20, 12)
POSITION = len(PROMPT) + len(OUTPUT)

ROWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 4},
    "cut": {"seed": -9, "top_k": 7, "temperature": 1.4},
    "nucleus": {"seed": 2**63 - 1, "top_p": 0.6},
    "both": {"seed": -(2**63), "top_k": 40, "top_p": 0.8, "temperature": 0.6},
    "best of one": {"seed": 1, "top_k": 1, "temperature": 1.9},
    "presence": {"temperature": 0.0, "presence_penalty": 2.0},
    "frequency": {"seed": 5, "frequency_penalty": -1.5},
    "repetition": {"seed": 6, "repetition_penalty": 1.8},
    "all penalties": {
        "seed": 8,
        "presence_penalty": -0.7,
        "frequency_penalty": 0.4,
        "repetition_penalty": 0.7,
        "top_p": 0.9,
    },
}


def facts(vocab_size: int = VOCAB, **sampling: Any) -> SamplingFacts:
    return SamplingFacts.of(SamplingParams(**sampling), len(PROMPT), vocab_size)


def program(rows: Sequence[SamplingFacts], vocab_size: int = VOCAB) -> Program:
    return Program(sampling_params(tuple(rows)), vocab_size)


def history(rows: int) -> History:
    longest = max(len(PROMPT), len(OUTPUT)) + 2
    pad = [-1] * longest
    return History(
        torch.tensor([[*PROMPT, *pad][:longest]] * rows, dtype=torch.int32),
        torch.tensor([[*OUTPUT, *pad][:longest]] * rows, dtype=torch.int32),
    )


def on_host(
    sampler: HostSampler, logits: torch.Tensor, rows: Sequence[dict[str, Any]]
) -> Sampled:
    requests = [make_request(output=OUTPUT, **sampling) for sampling in rows]
    return sampler.sample(
        logits.clone(),
        [row_of(request, place) for place, request in enumerate(requests)],
        None,
    )


@pytest.mark.feature(123)
@pytest.mark.parametrize("vocab_size", [VOCAB, 9733])
def test_the_same_tokens_as_on_the_host(
    make_sampler: SamplerMaker, vocab_size: int
) -> None:
    logits = random_logits(3, len(ROWS), vocab_size)
    # Tokens that the penalties are about must be among the candidates.
    logits[:, [*PROMPT, *OUTPUT]] += 9.0
    expected = on_host(make_sampler(vocab_size), logits, list(ROWS.values()))
    rows = [facts(vocab_size, **sampling) for sampling in ROWS.values()]
    positions = np.full(len(rows), POSITION)
    sampled = DeviceSampler(vocab_size).sample(
        logits.clone(), program(rows, vocab_size), positions, history(len(rows))
    )
    assert sampled.tokens.tolist() == expected.token_ids
    assert sampled.logprobs is None


def test_penalties_need_the_tokens_so_far() -> None:
    rows = [facts(temperature=0.0, presence_penalty=1.0)]
    with pytest.raises(ValueError, match="penalty"):
        DeviceSampler(VOCAB).sample(
            random_logits(0, 1, VOCAB), program(rows), np.array([5])
        )


@pytest.mark.feature(125, 126)
@pytest.mark.edge(41)
def test_log_probabilities_as_on_the_host(make_sampler: SamplerMaker) -> None:
    asked: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 20},
        {"seed": 3, "temperature": 1.5, "logprobs": 4},
        {"temperature": 0.0},
        {"seed": 4, "temperature": 2.0, "logprobs": 0},
        {"temperature": 0.0, "logprobs": 2, "repetition_penalty": 1.9},
    ]
    logits = random_logits(4, len(asked), VOCAB)
    expected = on_host(make_sampler(), logits, asked)
    rows = [facts(**sampling) for sampling in asked]
    sampled = DeviceSampler(VOCAB).sample(
        logits.clone(),
        program(rows),
        np.full(len(rows), POSITION),
        history(len(rows)),
    )
    assert isinstance(sampled.logprobs, tuple)
    values, token_ids = sampled.logprobs
    assert values.shape == token_ids.shape == (len(rows), TOP_LOGPROBS)
    for place, answer in enumerate(expected.logprobs):
        if answer is None:
            continue
        chosen = int(sampled.tokens[place])
        assert chosen == expected.token_ids[place]
        where = token_ids[place].tolist().index(chosen)
        assert float(values[place, where]) == pytest.approx(answer.chosen, abs=1e-4)
        count = len(answer.top_ids)
        assert token_ids[place, :count].tolist() == answer.top_ids
        best = values[place, :count].tolist()
        assert best == pytest.approx(answer.top_values, abs=1e-4)


@pytest.mark.edge(41)
def test_a_token_from_outside_the_best_is_still_in_the_answer() -> None:
    """The hottest draw over a flat vocabulary is hardly ever among the best 32."""
    logits = random_logits(5, 40, VOCAB) / 100
    rows = [facts(seed=seed, temperature=2.0, logprobs=5) for seed in range(40)]
    sampled = DeviceSampler(VOCAB).sample(
        logits.clone(), program(rows), np.full(40, POSITION)
    )
    assert isinstance(sampled.logprobs, tuple)
    values, token_ids = sampled.logprobs
    raw = logits.log_softmax(dim=1)
    best = raw.topk(TOP_LOGPROBS, dim=1).indices
    outside = 0
    for place, chosen in enumerate(sampled.tokens.tolist()):
        where = token_ids[place].tolist().index(chosen)
        assert float(values[place, where]) == pytest.approx(float(raw[place, chosen]))
        assert token_ids[place, :5].tolist() == best[place, :5].tolist()
        assert values[place].tolist() == sorted(values[place].tolist(), reverse=True)
        outside += chosen not in best[place].tolist()
    assert outside > 20


@pytest.mark.feature(126)
def test_one_value_per_row_where_nobody_asks_for_more() -> None:
    logits = random_logits(6, 3, VOCAB)
    rows = [
        facts(temperature=0.0, logprobs=0),
        PADDING,
        facts(temperature=0.0),
    ]
    sampled = DeviceSampler(VOCAB).sample(
        logits.clone(), program(rows), np.array([9, -1, 9])
    )
    assert isinstance(sampled.logprobs, torch.Tensor)
    assert sampled.logprobs.shape == (3,)
    expected = float(logits[0].log_softmax(dim=0).max())
    assert float(sampled.logprobs[0]) == pytest.approx(expected)


def test_rows_without_a_request_have_token_0_and_change_nothing() -> None:
    logits = random_logits(7, 4, VOCAB)
    logits[1] = torch.nan
    rows = [facts(seed=2), PADDING, facts(seed=3), PADDING]
    positions = np.array([8, -1, 11, -1])
    sampled = DeviceSampler(VOCAB).sample(logits.clone(), program(rows), positions)
    assert sampled.tokens[[1, 3]].tolist() == [0, 0]
    alone = [
        DeviceSampler(VOCAB).sample(
            logits[[place]].clone(), program([rows[place]]), positions[[place]]
        )
        for place in (0, 2)
    ]
    assert sampled.tokens[[0, 2]].tolist() == [int(one.tokens[0]) for one in alone]


def test_a_row_of_no_numbers_has_no_token() -> None:
    logits = random_logits(8, 3, VOCAB)
    logits[1, 4] = torch.nan
    rows = [facts(temperature=0.0)] * 3
    sampled = DeviceSampler(VOCAB).sample(logits, program(rows), np.array([5, 5, 5]))
    assert sampled.tokens[1] == NO_TOKEN
    assert (sampled.tokens[[0, 2]] >= 0).all()


@pytest.mark.feature(132)
def test_masked_rows_choose_among_what_is_allowed() -> None:
    logits = random_logits(9, 3, VOCAB)
    mask = np.vstack(
        [allow_only([3, 40, 319], VOCAB), allow_only(range(VOCAB), VOCAB)]
        + [allow_only([77], VOCAB)]
    )
    rows = [facts(temperature=0.0), facts(temperature=0.0), facts(seed=1)]
    sampled = DeviceSampler(VOCAB).sample(
        logits.clone(),
        program(rows),
        np.array([5, 6, 7]),
        bitmask=torch.from_numpy(mask),
    )
    allowed = [3, 40, 319]
    assert sampled.tokens[0] == allowed[int(logits[0, allowed].argmax())]
    assert sampled.tokens[1] == int(logits[1].argmax())
    assert sampled.tokens[2] == 77


def test_parameters_of_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows for 3 rows"):
        DeviceSampler(VOCAB).sample(
            random_logits(0, 3, VOCAB), program([PADDING] * 2), np.array([1, 1, 1])
        )


DRAWS = 40_000


@pytest.mark.feature(121)
@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 1.7, "top_k": 9},
        {"temperature": 0.8, "top_p": 0.85},
        {"temperature": 1.3, "top_k": 12, "top_p": 0.7},
    ],
    ids=["plain", "top_k", "top_p", "both"],
)
def test_draws_are_distributed_as_vllm_draws(
    config: Any, sampling: dict[str, Any], seeded: bool
) -> None:
    """Chi-square of many draws against the softmax of what vLLM draws from."""
    logits = random_logits(11, 1, 24)[0]
    drawn_from = vllm_drawn_from(config, make_request(**sampling), logits)
    expected = drawn_from.softmax(dim=0).double().numpy() * DRAWS
    sampler, counts = DeviceSampler(24), np.zeros(24)
    at_once = 400
    for first in range(0, DRAWS, at_once):
        rows = [
            facts(24, seed=first + place if seeded else None, **sampling)
            for place in range(at_once)
        ]
        sampled: SampledTokens = sampler.sample(
            logits.repeat(at_once, 1), program(rows, 24), np.full(at_once, POSITION)
        )
        counts += np.bincount(sampled.tokens, minlength=24)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    usual = expected >= 5
    observed = np.append(counts[usual], counts[possible & ~usual].sum())
    wanted = np.append(expected[usual], expected[possible & ~usual].sum())
    some = wanted > 0
    chi_square = ((observed - wanted)[some] ** 2 / wanted[some]).sum()
    freedom = some.sum() - 1
    # Wilson and Hilferty's approximation of the quantile at six standard
    # deviations: by chance once in a billion.
    spread = 2 / (9 * freedom)
    assert chi_square < freedom * (1 - spread + 6 * spread**0.5) ** 3

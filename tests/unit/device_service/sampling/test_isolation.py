"""A row's token and log probabilities do not depend on its neighbours."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from vllm.sampling_params import StructuredOutputsParams

from device_service.records import SamplingRow, TokenLogprobs
from device_service.sampling.host_sampler import HostSampler
from tests.unit.device_service.sampling.batches import (
    allow_all,
    allow_only,
    make_request,
    random_logits,
    row_of,
)

VOCAB = 9733  # no multiple of a block, and above the size where blocks are used

Parts = tuple[dict[str, Any], int, int, bool]


def maybe(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A parameter that is left out as often as not."""
    return st.one_of(st.just({}), values.map(lambda value: {name: value}))


token = st.integers(0, VOCAB - 1)
parameters = st.tuples(
    st.one_of(
        st.just({"temperature": 0.0}),
        st.builds(
            lambda temperature, seed: {"temperature": temperature, "seed": seed},
            st.sampled_from([0.3, 1.0, 2.0]),
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        ),
    ),
    maybe("top_k", st.sampled_from([1, 2, 40, 256, 287, 600])),
    maybe("top_p", st.sampled_from([0.01, 0.5, 0.9, 0.9999])),
    maybe("min_p", st.sampled_from([1e-8, 0.01, 0.5])),
    maybe("presence_penalty", st.sampled_from([-2.0, 1.0])),
    maybe("frequency_penalty", st.sampled_from([-0.7, 1.3])),
    maybe("repetition_penalty", st.sampled_from([0.5, 1.4])),
    maybe("logit_bias", st.dictionaries(token, st.floats(-9, 9), max_size=3)),
    maybe("allowed_token_ids", st.lists(token, min_size=2, max_size=400, unique=True)),
    maybe("_bad_words_token_ids", st.lists(st.lists(token, min_size=1), max_size=3)),
    maybe("min_tokens", st.integers(1, 6)),
    maybe("stop_token_ids", st.lists(token, max_size=3)),
    maybe("logprobs", st.integers(0, 20)),
).map(lambda parts: {key: value for part in parts for key, value in part.items()})
rows_of_a_batch = st.lists(
    st.tuples(
        parameters,
        st.integers(0, 10_000),  # whence its logits
        st.integers(0, 6),  # tokens produced
        st.booleans(),  # under a grammar
    ),
    min_size=2,
    max_size=10,
)


class Row:
    """One request about to choose, with its logits and mask."""

    def __init__(self, parts: Parts, place: int) -> None:
        sampling, origin, produced, structured = parts
        if structured:
            sampling = sampling | {
                "structured_outputs": StructuredOutputsParams(json_object=True)
            }
        chance = random.Random(origin)
        prompt = [chance.randrange(VOCAB) for _ in range(1 + origin % 30)]
        output = [chance.choice(prompt) for _ in range(produced)]
        self.request = make_request(prompt=prompt, output=output, **sampling)
        self.logits = random_logits(origin, 1, VOCAB)
        if origin % 3 == 0:  # as a bfloat16 model has them: with ties
            self.logits = self.logits.bfloat16().float()
        self.mask = allow_all(1, VOCAB)
        if structured:
            allowed = sampling.get("allowed_token_ids") or range(origin % 100, VOCAB, 7)
            self.mask = allow_only(list(allowed), VOCAB)
        self.entry = row_of(self.request, place)
        greedy = sampling.get("temperature") == 0.0 or sampling.get("top_k") == 1
        self.deterministic = greedy or sampling.get("seed") is not None


Outcome = tuple[int | None, TokenLogprobs | None, str | None]


def outcomes(sampler: HostSampler, rows: list[Row]) -> list[Outcome]:
    """What became of each row, as far as chance does not decide it."""
    logits = torch.cat([row.logits for row in rows])
    entries: list[SamplingRow] = [row.entry for row in rows]
    mask = np.concatenate([row.mask for row in rows])
    sampled = sampler.sample(logits, entries, mask)
    found: list[Outcome] = []
    for place, row in enumerate(rows):
        error = sampled.errors.get(place)
        if error is not None:
            found.append((None, None, error.message))
        elif row.deterministic:
            found.append((sampled.token_ids[place], sampled.logprobs[place], None))
        else:
            shown = sampled.logprobs[place]
            best = shown and TokenLogprobs(0, 0, shown.top_ids, shown.top_values)
            found.append((None, best, None))
    return found


@pytest.mark.feature(123, 128)
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_a_row_is_sampled_as_if_it_were_alone(
    make_sampler: Callable[..., HostSampler], mode: str
) -> None:
    together = make_sampler(VOCAB, logprobs_mode=mode)
    alone = make_sampler(VOCAB, logprobs_mode=mode)

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(rows_of_a_batch)
    def check(batch: list[Parts]) -> None:
        rows = [Row(parts, place) for place, parts in enumerate(batch)]
        in_batch = outcomes(together, rows)
        for row, expected in zip(rows, in_batch, strict=True):
            assert outcomes(alone, [row]) == [expected]
            together.release(row.request.request_id)
            alone.release(row.request.request_id)

    check()
    assert together.held == 0
    assert alone.held == 0


@pytest.mark.feature(128)
def test_the_order_of_rows_does_not_matter(
    make_sampler: Callable[..., HostSampler],
) -> None:
    sampler = make_sampler(VOCAB)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"seed": 1},
        {"seed": 2, "top_p": 0.9},
        {"seed": 3, "top_k": 600, "repetition_penalty": 1.2},
        {"seed": 4, "min_p": 0.1, "logprobs": 3},
        {"temperature": 0.0, "min_tokens": 3, "stop_token_ids": [5]},
    ]
    rows = [Row((kind, i, 2, False), i) for i, kind in enumerate(kinds)]
    forwards = outcomes(sampler, rows)
    assert outcomes(sampler, rows[::-1]) == forwards[::-1]

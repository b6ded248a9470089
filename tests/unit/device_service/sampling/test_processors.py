"""Configured logits processors keep a row's state apart from its successor's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from device_service.sampling.host_sampler import HostSampler
from device_service.sampling.processors import RowGrid
from tests.unit.device_service.sampling.batches import (
    make_request,
    random_logits,
    row_of,
)

VOCAB = 320


class EverySecondSteps(LogitsProcessor):
    """Remembers, for each row, how often it was asked, and forces that token.

    A request opts in with `extra_args={"count": first}`.
    """

    def __init__(
        self,
        config: VllmConfig,
        device: torch.device,
        is_pin_memory: bool,
    ) -> None:
        self.counts: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row, params, _, _ in batch_update.added:
            self.counts.pop(row, None)
            first = (params.extra_args or {}).get("count")
            if first is not None:
                self.counts[row] = first
        for row in batch_update.removed:
            self.counts.pop(row, None)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, count in self.counts.items():
            logits[row, count] = 1000.0
            self.counts[row] = count + 1
        return logits


class KeepsTheBestTwo(LogitsProcessor):
    """Argmax-invariant: of scaled logits, forbids all but the best two."""

    def __init__(
        self,
        config: VllmConfig,
        device: torch.device,
        is_pin_memory: bool,
    ) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None: ...

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        least = logits.topk(2, dim=1).values[:, 1:]
        return logits.masked_fill(logits < least, -torch.inf)


@pytest.fixture
def counting(make_sampler: Callable[..., HostSampler]) -> HostSampler:
    return make_sampler(total_rows=8, logits_processors=[EverySecondSteps])


def counted(first: int) -> Request:
    return make_request(temperature=0.0, extra_args={"count": first})


def step(sampler: HostSampler, *rows: tuple[Request, int]) -> list[int]:
    logits = random_logits(1, len(rows), VOCAB)
    entries = [row_of(request, row) for request, row in rows]
    return sampler.sample(logits, entries, None).token_ids


def test_state_stays_with_the_row_while_others_come_and_go(
    counting: HostSampler,
) -> None:
    a, b, plain = counted(100), counted(200), make_request(temperature=0.0)
    assert step(counting, (a, 3)) == [100]
    assert step(counting, (plain, 0), (a, 3), (b, 5))[1:] == [101, 200]
    counting.release(plain.request_id)
    assert step(counting, (b, 5)) == [201]


@pytest.mark.edge(18)
def test_a_row_given_to_another_starts_afresh(counting: HostSampler) -> None:
    a, b = counted(100), counted(200)
    assert step(counting, (a, 3)) == [100]
    counting.release(a.request_id)
    assert step(counting, (b, 3)) == [200]
    assert step(counting, (b, 3)) == [201]


def test_a_row_given_to_one_that_does_not_use_the_processor(
    counting: HostSampler,
) -> None:
    a, plain = counted(100), make_request(temperature=0.0)
    best = int(random_logits(1, 1, VOCAB).argmax())
    assert step(counting, (a, 3)) == [100]
    counting.release(a.request_id)
    assert step(counting, (plain, 3)) == [best]


def test_a_request_may_resume_in_another_row(counting: HostSampler) -> None:
    """Preempted, it returns elsewhere while its old row has a new owner."""
    a, b = counted(100), counted(200)
    assert step(counting, (a, 3)) == [100]
    assert step(counting, (b, 3), (a, 5)) == [200, 100]
    assert step(counting, (b, 3), (a, 5)) == [201, 101]
    for request in (a, b):
        counting.release(request.request_id)
    assert counting.held == 0


@pytest.mark.edge(19)
def test_no_row_is_both_removed_and_added_in_one_update() -> None:
    class Recording(EverySecondSteps):
        def update_state(self, batch_update: BatchUpdate | None) -> None:
            updates.append(batch_update)

    updates: list[BatchUpdate | None] = []
    recording = Recording(None, None, False)  # type: ignore[arg-type]
    grid = RowGrid([recording], 8, VOCAB)
    a, b, c = (make_request() for _ in range(3))
    grid.update([row_of(a, 0), row_of(b, 1)])
    grid.forget(a.request_id)
    grid.forget(b.request_id)
    grid.update([row_of(c, 1)])
    grid.update([row_of(c, 1)])
    first, second, third = updates
    assert first is not None
    assert [entry[0] for entry in first.added] == [0, 1]
    assert second is not None
    assert [entry[0] for entry in second.added] == [1]
    assert list(second.removed) == [0]
    assert third is None


def test_argmax_invariant_processors_see_scaled_logits_before_top_k(
    make_sampler: Callable[..., HostSampler],
) -> None:
    sampler = make_sampler(logits_processors=[KeepsTheBestTwo])
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 9]] = torch.tensor([0.1, 0.2])
    cuts: list[dict[str, Any]] = [{}, {"top_k": 50}, {"seed": 3}, {"top_p": 0.9}]
    rows = [
        row_of(make_request(temperature=2.0, **cut), row)
        for row, cut in enumerate(cuts * 16)
    ]
    drawn = sampler.sample(logits.repeat(64, 1), rows, None).token_ids
    assert set(drawn) == {7, 9}
    greedy = row_of(make_request(temperature=0.0))
    assert sampler.sample(logits, [greedy], None).token_ids == [9]


@pytest.mark.edge(18)
def test_vllms_own_processors_forget_the_rows_of_the_step_before(
    make_sampler: Callable[..., HostSampler],
) -> None:
    sampler = make_sampler()
    params = SamplingParams(temperature=0.0, logit_bias={4: 100.0}, min_tokens=2)
    biased = [row_of(make_request(params), i) for i in range(5)]
    logits = random_logits(2, 6, VOCAB)
    best = logits.argmax(dim=1).tolist()
    assert sampler.sample(logits[:5].clone(), biased, None).token_ids == [4] * 5
    other = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=[1])
    rows = [row_of(make_request(other), 0), biased[0]]
    assert sampler.sample(logits[:2].clone(), rows, None).token_ids == [best[0], 4]

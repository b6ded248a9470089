"""What the device's sampler gets with a decode step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_service.batch.sampling import DecodeSampling
from device_service.records import Admitted
from device_service.sampling.facts import PADDING, SamplingFacts
from device_service.sequence import Sequence
from tests.support.rig import ListSink
from tests.unit.device_service.sampling.batches import make_request

ROWS = 6
PENALTY = {"presence_penalty": 1.0}


def _sequence(
    prompt: list[int], output: list[int] | None = None, **sampling: Any
) -> Sequence:
    request = make_request(prompt=prompt, output=output or (), **sampling)
    assert request.sampling_params is not None
    admitted = Admitted(
        request=request,
        sink=ListSink(),
        session_number=1,
        handle=1,
        external_request_id="",
        top_logprobs=None,
        awaits_grammar=False,
    )
    facts = SamplingFacts.of(request.sampling_params, len(prompt), 300)
    return Sequence.admit(
        admitted, facts, lane=0, order=(0, 1), max_model_len=500, now=0.0
    )


def _rows(tensor: torch.Tensor | None) -> list[list[int]]:
    """Each row without its padding."""
    assert tensor is not None
    assert tensor.dtype == torch.int32
    return [[token for token in row if token != -1] for row in tensor.tolist()]


def test_rows_are_laid_out_once() -> None:
    sampling = DecodeSampling(ROWS)
    first, second = _sequence([1, 2], seed=4), _sequence([3])
    sampling.lay_out([0, 3], [first, second], 4)
    step = sampling.of_step()
    assert step.rows == (first.sampling, PADDING, PADDING, second.sampling)
    assert step.prompt_tokens is None
    assert step.output_tokens is None
    assert not step.deferred
    assert sampling.of_step().rows is step.rows


@pytest.mark.feature(123)
def test_histories_are_of_penalised_rows_and_grow_with_them() -> None:
    sampling = DecodeSampling(ROWS)
    plain = _sequence([1, 2, 3])
    penalised = _sequence([4, 5], [6], **PENALTY)
    sampling.lay_out([1, 2], [plain, penalised], 4)
    step = sampling.of_step()
    assert _rows(step.prompt_tokens) == [[], [], [4, 5], [], [], []]
    assert _rows(step.output_tokens) == [[], [], [6], [], [], []]
    penalised.request.append_output_token_ids([7, 8])
    grown = sampling.of_step()
    assert _rows(grown.output_tokens) == [[], [], [6, 7, 8], [], [], []]
    # What was submitted before is not changed under the device's hands.
    assert _rows(step.output_tokens) == [[], [], [6], [], [], []]


@pytest.mark.edge(18)
def test_a_row_that_changes_hands_keeps_nothing_of_its_owner_before() -> None:
    sampling = DecodeSampling(ROWS)
    long = _sequence([1, 2, 3, 4], [5, 6, 7], **PENALTY)
    other = _sequence([20], [21], **PENALTY)
    sampling.lay_out([0, 1], [long, other], 2)
    sampling.of_step()
    newcomer = _sequence([9], [10], **PENALTY)
    sampling.lay_out([0, 2], [newcomer, other], 4)
    step = sampling.of_step()
    assert _rows(step.prompt_tokens) == [[9], [], [20], [], [], []]
    assert _rows(step.output_tokens) == [[10], [], [21], [], [], []]


def test_long_histories() -> None:
    sampling = DecodeSampling(2)
    prompt = list(range(100, 290))
    row = _sequence(prompt, [1], **PENALTY)
    sampling.lay_out([1], [row], 2)
    assert _rows(sampling.of_step().prompt_tokens) == [[], prompt]
    row.request.append_output_token_ids(list(range(200)))
    assert _rows(sampling.of_step().output_tokens) == [[], [1, *range(200)]]

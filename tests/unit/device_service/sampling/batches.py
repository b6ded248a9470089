"""Requests, rows and logits for the sampler's tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from device_service.records import SamplingRow

_numbers = itertools.count(1)

PROMPT = (11, 12, 13, 12)


def make_request(
    params: SamplingParams | None = None,
    *,
    prompt: Sequence[int] = PROMPT,
    output: Sequence[int] = (),
    **sampling: Any,
) -> Request:
    """A request that has produced `output`; an id that no other has."""
    if params is None:
        params = SamplingParams(**({"max_tokens": 1000} | sampling))
    request = Request(
        request_id=f"request-{next(_numbers)}",
        prompt_token_ids=list(prompt),
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
    )
    if output:
        request.append_output_token_ids(list(output))
    return request


def row_of(
    request: Request, row: int = 0, *, position: int | None = None
) -> SamplingRow:
    """The request's row, about to choose its next token."""
    params = request.sampling_params
    assert params is not None
    if position is None:
        position = request.num_tokens
    return SamplingRow(request, row, position, params.num_logprobs)


def random_logits(seed: int, rows: int, vocab_size: int) -> torch.Tensor:
    """Logits with the spread of a real model's."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab_size, generator=generator) * 3.0


def allow_only(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """A bitmask row in which these tokens are allowed."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)[None, :].copy()


def allow_all(rows: int, vocab_size: int) -> np.ndarray:
    """Bitmask rows in which everything is allowed."""
    return np.full((rows, -(-vocab_size // 32)), -1, dtype=np.int32)

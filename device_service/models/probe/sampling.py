"""Checks of what a device step samples with (contract 1.5, 2.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from device_service.models.contract import TTSamplingParams
from device_service.models.contract.values import NO_LOGPROBS
from device_service.models.probe.breach import Judge
from device_service.models.probe.facts import Facts
from device_service.models.probe.tensors import check_tensor

PADDING: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_k": 1,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "num_logprobs": NO_LOGPROBS,
    "enable_log_probs": False,
}
"""What a row without a request samples with."""

_SEED_LIMIT = 1 << 63


def check_sampling_params(
    judge: Judge, facts: Facts, params: object, taken: Sequence[bool]
) -> None:
    """`params` fits the rows; `taken` says which of them hold a request."""
    judge.expect(
        facts.capabilities.supports_sample_on_device,
        "1.13",
        "sampling_params without supports_sample_on_device",
    )
    judge.expect(
        isinstance(params, TTSamplingParams),
        "1.5",
        f"sampling_params is {type(params).__name__}, not TTSamplingParams",
    )
    assert isinstance(params, TTSamplingParams)
    for name in PADDING:
        values = getattr(params, name)
        judge.expect(
            isinstance(values, list) and len(values) == len(taken),
            "1.5",
            f"sampling_params.{name} is not a list of {len(taken)} entries",
        )
    for row, holds_request in enumerate(taken):
        if holds_request:
            _check_row(judge, facts, params, row)
        else:
            _check_padding(judge, params, row)


def _check_padding(judge: Judge, params: TTSamplingParams, row: int) -> None:
    for name, neutral in PADDING.items():
        value = getattr(params, name)[row]
        judge.expect(
            value == neutral,
            "1.5",
            f"sampling_params.{name}[{row}] is {value!r} in a row without a request, "
            f"not {neutral!r}",
        )


def _check_row(judge: Judge, facts: Facts, params: TTSamplingParams, row: int) -> None:
    top_k, top_p = params.top_k[row], params.top_p[row]
    temperature = params.temperature[row]
    judge.expect(temperature >= 0.0, "1.5", f"temperature[{row}] is {temperature}")
    judge.expect(
        1 <= top_k <= facts.vocabulary,
        "1.5",
        f"top_k[{row}] is {top_k}, not within 1..{facts.vocabulary}",
    )
    judge.expect(
        top_p == 0.0 if top_k == 1 else 0.0 < top_p <= 1.0,
        "1.5",
        f"top_p[{row}] is {top_p} beside top_k {top_k}; it is 0.0 where top_k is 1 "
        "and within (0, 1] elsewhere",
    )
    most = facts.capabilities.max_device_top_k
    judge.expect(
        most is None or temperature == 0.0 or top_k <= most,
        "2.8",
        f"top_k[{row}] is {top_k}, more than max_device_top_k {most}",
    )
    seed, logprobs = params.seed[row], params.num_logprobs[row]
    judge.expect(
        seed is None or (isinstance(seed, int) and -_SEED_LIMIT <= seed < _SEED_LIMIT),
        "1.5",
        f"seed[{row}] is {seed!r}, neither None nor a signed 64-bit number",
    )
    judge.expect(
        logprobs == NO_LOGPROBS or 0 <= logprobs <= facts.vocabulary,
        "1.5",
        f"num_logprobs[{row}] is {logprobs}",
    )
    judge.expect(
        params.enable_log_probs[row] is (logprobs >= 0),
        "1.5",
        f"enable_log_probs[{row}] does not say whether num_logprobs is at least 0",
    )
    judge.expect(
        facts.capabilities.supports_device_penalties or not _has_penalty(params, row),
        "2.8",
        f"row {row} has a penalty without supports_device_penalties",
    )


def check_history(judge: Judge, facts: Facts, call: Mapping[str, Any]) -> None:
    """Penalties come with the tokens they count, and only with them.

    A deferred step tells its penalties later, so here both or none are right.
    """
    given = [name for name in ("prompt_tokens", "output_tokens") if name in call]
    if "defer_device_sampling" in call:
        judge.expect(len(given) != 1, "1.8", f"{''.join(given)} without the other")
    else:
        params = call.get("sampling_params")
        wanted = params is not None and any(
            _has_penalty(params, row) for row in range(len(params.top_k))
        )
        judge.expect(
            len(given) == (2 if wanted else 0),
            "1.8",
            f"{' and '.join(given) or 'no token history'} although "
            f"{'a' if wanted else 'no'} row has a penalty",
        )
    for name in given:
        value = call[name]
        columns = (
            value.shape[1] if isinstance(value, torch.Tensor) and value.dim() else 0
        )
        ids = check_tensor(judge, "1.8", name, value, (facts.rows, columns))
        judge.expect(
            not ids.size or (ids.min() >= -1 and ids.max() < facts.vocabulary),
            "1.8",
            f"{name} holds neither -1 nor a token of the vocabulary",
        )
        ends = (ids < 0).astype(np.int8)
        judge.expect(
            (np.diff(ends, axis=1) >= 0).all(),
            "1.8",
            f"{name} has a token after its padding of -1",
        )


def _has_penalty(params: TTSamplingParams, row: int) -> bool:
    return (
        params.presence_penalty[row] != 0.0
        or params.frequency_penalty[row] != 0.0
        or params.repetition_penalty[row] != 1.0
    )

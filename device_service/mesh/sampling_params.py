"""The device's sampling parameters in the contract's form (contract 1.5)."""

from __future__ import annotations

from typing import Any

from device_service.batch.inputs import StepSampling
from device_service.models.contract import TTSamplingParams
from device_service.sampling.facts import SamplingFacts


class SamplingParamsMemory:
    """Makes the lists, once for as long as the rows stay the same object."""

    def __init__(self) -> None:
        self._rows: tuple[SamplingFacts, ...] | None = None
        self._params: TTSamplingParams | None = None

    def of(self, rows: tuple[SamplingFacts, ...]) -> TTSamplingParams:
        """One entry per row; adapters must not change the lists."""
        if self._params is None or self._rows is not rows:
            self._rows, self._params = rows, sampling_params(rows)
        return self._params


def sampling_params(rows: tuple[SamplingFacts, ...]) -> TTSamplingParams:
    """Rows as columns; padding is a row of its own kind, `facts.PADDING`."""
    return TTSamplingParams(
        temperature=[row.temperature for row in rows],
        top_k=[row.top_k for row in rows],
        top_p=[row.top_p for row in rows],
        presence_penalty=[row.presence_penalty for row in rows],
        frequency_penalty=[row.frequency_penalty for row in rows],
        repetition_penalty=[row.repetition_penalty for row in rows],
        seed=[row.seed for row in rows],
        num_logprobs=[row.num_logprobs for row in rows],
        enable_log_probs=[row.num_logprobs >= 0 for row in rows],
    )


def histories(sampling: StepSampling) -> dict[str, Any]:
    """The keywords of `decode_forward` that penalties need; none without any."""
    if sampling.prompt_tokens is None:
        return {}
    return {
        "prompt_tokens": sampling.prompt_tokens,
        "output_tokens": sampling.output_tokens,
    }

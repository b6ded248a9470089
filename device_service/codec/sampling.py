"""Sampling, stop rules and logprobs: messages -> vLLM's SamplingParams.

On Attach every value is explicit and a missing one is refused by name; on
Generate a missing one takes the served generation default, then the neutral
value. Both ways end in the same checks: a number outside its range (NaN and
infinities are outside every range) is INVALID_FIELD.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vllm.sampling_params import RepetitionDetectionParams, SamplingParams

from device_service.codec.structured import structured_outputs
from ttserve.errors import TTServeError, invalid_field
from ttserve.v1 import generation_pb2

SLICE = 4096
MAX_FLOAT32 = 3.4028235e38
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number in `Sampling`: its range, and the value that changes nothing."""

    name: str
    low: float
    high: float
    neutral: float
    above_low: bool = False

    def check(self, value: float) -> float:
        """Return the value, or refuse it when it is outside the range."""
        inside = self.low <= value <= self.high
        if not inside or (self.above_low and value == self.low):
            least = f"above {self.low}" if self.above_low else f"from {self.low}"
            raise invalid_field(
                f"sampling.{self.name}",
                f"{self.name} must be {least} to {self.high}, not {value}",
            )
        return value


SCALARS = (
    Scalar("temperature", 0.0, 2.0, neutral=1.0),
    Scalar("top_p", 0.0, 1.0, neutral=1.0, above_low=True),
    Scalar("top_k", 0, MAX_INT32, neutral=0),
    Scalar("min_p", 0.0, 1.0, neutral=0.0),
    Scalar("presence_penalty", -2.0, 2.0, neutral=0.0),
    Scalar("frequency_penalty", -2.0, 2.0, neutral=0.0),
    Scalar("repetition_penalty", 0.0, MAX_FLOAT32, neutral=1.0, above_low=True),
)


def explicit_scalars(sampling: generation_pb2.Sampling) -> dict[str, float]:
    """The numbers of a submission on Attach, where each has to be there."""
    values = {}
    for scalar in SCALARS:
        if not sampling.HasField(scalar.name):
            raise missing_field(f"sampling.{scalar.name}")
        values[scalar.name] = scalar.check(getattr(sampling, scalar.name))
    return values


def defaulted_scalars(
    sampling: generation_pb2.Sampling, defaults: Mapping[str, Any]
) -> dict[str, float]:
    """The numbers of a Generate call: given, else served default, else neutral."""
    values = {}
    for scalar in SCALARS:
        if sampling.HasField(scalar.name):
            value = getattr(sampling, scalar.name)
        else:
            value = defaults.get(scalar.name, scalar.neutral)
        values[scalar.name] = scalar.check(value)
    return values


@dataclass(frozen=True, slots=True)
class Stops:
    """When a generation stops, with everything decided.

    `eos_token_id` is None where the end-of-sequence token is ignored.
    `masked_ids` cannot be chosen before `min_tokens` are produced; vLLM adds
    `stop_token_ids` to them.
    """

    max_tokens: int
    min_tokens: int
    eos_token_id: int | None
    stop_token_ids: list[int]
    masked_ids: set[int]
    repetition: RepetitionDetectionParams | None


def explicit_stops(stop: generation_pb2.StopRules) -> Stops:
    """The stop rules of a submission on Attach."""
    if not stop.HasField("max_output_tokens"):
        raise missing_field("stop.max_output_tokens")
    return Stops(
        max_tokens=checked_max_tokens(stop.max_output_tokens),
        min_tokens=checked_min_tokens(stop, stop.max_output_tokens),
        eos_token_id=stop.eos_token_id if stop.HasField("eos_token_id") else None,
        stop_token_ids=token_list(stop.stop_token_ids),
        masked_ids=set(stop.min_tokens_masked_ids),
        repetition=repetition(stop),
    )


def checked_max_tokens(value: int) -> int:
    """Refuse a generation of no tokens."""
    if value < 1:
        raise invalid_field(
            "stop.max_output_tokens", "max_output_tokens must be at least 1, not 0"
        )
    return value


def checked_min_tokens(stop: generation_pb2.StopRules, max_tokens: int) -> int:
    """Refuse a least number of tokens above the most."""
    if stop.min_output_tokens > max_tokens:
        raise invalid_field(
            "stop.min_output_tokens",
            f"min_output_tokens must be at most max_output_tokens ({max_tokens}), "
            f"not {stop.min_output_tokens}",
        )
    return stop.min_output_tokens


def repetition(stop: generation_pb2.StopRules) -> RepetitionDetectionParams | None:
    """The repetition rule, where there is one."""
    if not stop.HasField("repetition"):
        return None
    rule = stop.repetition
    if rule.max_pattern_size < 1 or rule.min_pattern_size > rule.max_pattern_size:
        raise invalid_field(
            "stop.repetition",
            "max_pattern_size must be at least 1 and at least min_pattern_size",
        )
    if rule.min_count < 2:
        raise invalid_field("stop.repetition", "min_count must be at least 2")
    return RepetitionDetectionParams(
        max_pattern_size=rule.max_pattern_size,
        min_pattern_size=rule.min_pattern_size,
        min_count=rule.min_count,
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """The messages that make up the rest of a SamplingParams; None is unset."""

    sampling: generation_pb2.Sampling
    logprobs: generation_pb2.LogprobsRequest | None
    structured_output: generation_pb2.StructuredOutput | None
    skip_prefix_cache: bool


def sampling_params(
    scalars: Mapping[str, Any], stops: Stops, parts: Parts
) -> SamplingParams:
    """Put a SamplingParams together; vLLM's own checks run last."""
    sampling = parts.sampling
    top_count, top_ids = _logprobs(parts.logprobs)
    try:
        params = SamplingParams(
            **scalars,
            seed=sampling.seed if sampling.HasField("seed") else None,
            logit_bias=_logit_bias(sampling),
            allowed_token_ids=_allowed(sampling),
            _bad_words_token_ids=_bad_words(sampling),
            thinking_token_budget=_thinking_budget(sampling),
            max_tokens=stops.max_tokens,
            min_tokens=stops.min_tokens,
            _eos_token_id=stops.eos_token_id,
            stop_token_ids=stops.stop_token_ids,
            _all_stop_token_ids=stops.masked_ids,
            repetition_detection=stops.repetition,
            logprobs=top_count,
            logprob_token_ids=top_ids,
            structured_outputs=structured_outputs(parts.structured_output),
            skip_reading_prefix_cache=parts.skip_prefix_cache,
        )
    except ValueError as error:
        raise invalid_field("sampling", str(error)) from error
    if sampling.HasField("seed"):
        params.seed = sampling.seed  # vLLM reads -1 as "no seed"; here it is one
    return params


def token_list(field: Iterable[int]) -> list[int]:
    """A repeated field as a list, in slices.

    One long conversion would hold the GIL from start to end, and with it the
    event loop, even from another thread.
    """
    ids: list[int] = []
    rest: Iterator[int] = iter(field)
    while piece := list(islice(rest, SLICE)):
        ids += piece
    return ids


def missing_field(field: str) -> TTServeError:
    """Refuse a message that leaves out what it must state."""
    return invalid_field(field, f"{field} is not set; on Attach it has to be")


def _logprobs(
    request: generation_pb2.LogprobsRequest | None,
) -> tuple[int | None, list[int] | None]:
    if request is None:
        return None, None
    if not request.token_ids:
        return request.top_count, None
    token_ids = list(dict.fromkeys(request.token_ids))
    if request.top_count not in (0, len(token_ids)):
        raise invalid_field(
            "logprobs.top_count",
            "top_count must be 0 or the number of distinct token_ids "
            f"({len(token_ids)}) when those are given, not {request.top_count}",
        )
    return None, token_ids


def _logit_bias(sampling: generation_pb2.Sampling) -> dict[int, float] | None:
    bias = dict(sampling.logit_bias)
    if not all(map(math.isfinite, bias.values())):
        raise invalid_field("sampling.logit_bias", "logit_bias must be finite")
    return bias or None


def _allowed(sampling: generation_pb2.Sampling) -> list[int] | None:
    if not sampling.HasField("allowed_token_ids"):
        return None
    return token_list(sampling.allowed_token_ids.token_ids)


def _bad_words(sampling: generation_pb2.Sampling) -> list[list[int]] | None:
    return [list(word.token_ids) for word in sampling.bad_words] or None


def _thinking_budget(sampling: generation_pb2.Sampling) -> int | None:
    if not sampling.HasField("thinking_token_budget"):
        return None
    return sampling.thinking_token_budget

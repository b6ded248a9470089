"""What a request's parameters say about where and how it is sampled, read once.

Made at admission; a step only looks at it. The values are those that a device
is given (contract 1.5), so that nothing has to be worked out row by row later.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.sampling_params import SamplingParams

from device_service.sampling.recipe import (
    GREEDY_BELOW,
    effective_top_k,
    is_penalised,
)

NO_LOGPROBS = -2
"""`num_logprobs` of a row that asks for none (contract 1.5)."""


@dataclass(frozen=True, slots=True)
class SamplingFacts:
    """One request, as the sampling site and the device's parameters need it.

    temperature: 0.0 is greedy. top_k: the vocabulary size when off. top_p: 0.0
    where top_k is 1, because a device that always draws among several candidates
    is then greedy too. seed: signed 64-bit, None is unseeded. num_logprobs: -2
    none, 0 the chosen token's own, n the best n as well. host_only: the first
    parameter that only the host can honour, "" if there is none. min_tokens: 0
    unless a token is forbidden until then. prompt_tokens: length of the prompt.
    plain: the best token of the logits as they are is all that is wanted.
    """

    temperature: float
    top_k: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None
    num_logprobs: int
    host_only: str
    min_tokens: int
    prompt_tokens: int
    penalised: bool
    structured: bool
    plain: bool

    @classmethod
    def of(
        cls, params: SamplingParams, prompt_tokens: int, vocab_size: int
    ) -> SamplingFacts:
        """Read a request's parameters."""
        top_k = effective_top_k(params.top_k, vocab_size)
        temperature = 0.0 if params.temperature < GREEDY_BELOW else params.temperature
        num_logprobs = _num_logprobs(params, vocab_size)
        host_only, penalised = _host_only(params), is_penalised(params)
        structured = params.structured_outputs is not None
        wants_more = (
            host_only
            or penalised
            or structured
            or params.min_tokens
            or num_logprobs != NO_LOGPROBS
        )
        return cls(
            temperature=temperature,
            top_k=top_k,
            top_p=0.0 if top_k == 1 else params.top_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            seed=params.seed,
            num_logprobs=num_logprobs,
            host_only=host_only,
            min_tokens=params.min_tokens if params.all_stop_token_ids else 0,
            prompt_tokens=prompt_tokens,
            penalised=penalised,
            structured=structured,
            plain=(temperature == 0.0 or top_k == 1) and not wants_more,
        )

    @property
    def greedy(self) -> bool:
        """Whether the temperature is zero."""
        return self.temperature == 0.0

    def awaits_min_tokens(self, position: int) -> bool:
        """Whether the token at `position` may not be one that ends the request."""
        return position - self.prompt_tokens < self.min_tokens


PADDING = SamplingFacts(
    temperature=0.0,
    top_k=1,
    top_p=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    seed=None,
    num_logprobs=NO_LOGPROBS,
    host_only="",
    min_tokens=0,
    prompt_tokens=0,
    penalised=False,
    structured=False,
    plain=True,
)
"""A row without a request (contract 1.5)."""


def _num_logprobs(params: SamplingParams, vocab_size: int) -> int:
    asked = params.num_logprobs
    if asked is None:
        return NO_LOGPROBS
    return vocab_size if asked == -1 else asked


def _host_only(params: SamplingParams) -> str:
    """The first parameter that changes logits in a way devices do not know."""
    present = {
        "allowed_token_ids": params.allowed_token_ids,
        "bad_words": params.bad_words_token_ids,
        "logit_bias": params.logit_bias,
        "min_p": params.min_p > 0.0,
        "thinking_token_budget": params.thinking_token_budget is not None,
        "logprob_token_ids": params.logprob_token_ids,
    }
    return next((name for name, value in present.items() if value), "")

"""EngineCoreRequest -> Submission: everything explicit, nothing lost.

Which field goes where is decided in `ttserve.fields`; this module writes the
carried ones and refuses a request that sets a refused one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import (
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine import EngineCoreRequest

from ttserve.errors import invalid_field, unsupported
from ttserve.fields import (
    ENGINE_CORE_REQUEST,
    SAMPLING_PARAMS,
    STRUCTURED_OUTPUTS_PARAMS,
)
from ttserve.v1.generation_pb2 import (
    Choices,
    LogprobsRequest,
    RepetitionRule,
    Sampling,
    StopRules,
    StructuredOutput,
    Submission,
    SubmissionGroup,
    TokenIds,
)
from ttserve.v1.model_pb2 import Model

MAX_REQUEST_ID_BYTES = 256
_INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a submission carries that vLLM's request does not know.

    Its handle is given when it is sent.
    """

    external_request_id: str = ""
    group: SubmissionGroup | None = None


def encode_submission(
    request: EngineCoreRequest, envelope: Envelope, model: Model
) -> Submission:
    """The message for a request; raises TTServeError for what cannot be served."""
    params = request.sampling_params
    if params is None:
        raise unsupported("pooling_params", "pooling is not supported")
    _refuse(request, params)
    prompt = request.prompt_token_ids or []
    _check_prompt(prompt, params, model)
    return Submission(
        request_id=_request_id(request),
        prompt_token_ids=prompt,
        sampling=encode_sampling(params, model.vocab_size),
        stop=encode_stop(params, model.max_sequence_tokens),
        logprobs=_logprobs(params),
        structured_output=_structured(request, params.structured_outputs, model),
        priority=_priority(request.priority, model.scheduling.policy),
        cache_salt=request.cache_salt or "",
        group=envelope.group,
        trace_headers=dict(request.trace_headers or {}),
        skip_prefix_cache=bool(params.skip_reading_prefix_cache),
        external_request_id=envelope.external_request_id,
    )


def encode_sampling(params: SamplingParams, vocab_size: int) -> Sampling:
    """How tokens are chosen. A top_k of the whole vocabulary is no top_k."""
    budget = params.thinking_token_budget
    return Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k if 0 < params.top_k < vocab_size else 0,
        min_p=params.min_p,
        seed=None if params.seed is None else _signed64(params.seed),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        allowed_token_ids=_optional_ids(params.allowed_token_ids),
        bad_words=[TokenIds(token_ids=ids) for ids in params.bad_words_token_ids or ()],
        thinking_token_budget=None if budget is None else min(budget, 2**32 - 1),
    )


def encode_stop(params: SamplingParams, max_sequence_tokens: int) -> StopRules:
    """When to stop. Stop strings stay here; see RemoteLLM.abort."""
    return StopRules(
        max_output_tokens=params.max_tokens,
        min_output_tokens=params.min_tokens,
        eos_token_id=params.eos_token_id,
        stop_token_ids=params.stop_token_ids,
        # Sorted, so that equal requests are equal messages.
        min_tokens_masked_ids=sorted(params.all_stop_token_ids),
        repetition=_repetition(params.repetition_detection, max_sequence_tokens),
    )


def _refuse(request: EngineCoreRequest, params: SamplingParams) -> None:
    if name := ENGINE_CORE_REQUEST.first_refused(request):
        raise unsupported(name, f"{name} is not supported")
    if name := SAMPLING_PARAMS.first_refused(params):
        raise unsupported(name, f"{name} is not supported")
    outputs = params.structured_outputs
    if outputs and (name := STRUCTURED_OUTPUTS_PARAMS.first_refused(outputs)):
        raise unsupported(name, f"structured_outputs.{name} is not supported")


def _check_prompt(prompt: list[int], params: SamplingParams, model: Model) -> None:
    highest = max(prompt, default=0)
    if highest >= model.vocab_size:
        raise invalid_field(
            "prompt",
            f"token id {highest} is outside the vocabulary of {model.vocab_size}",
        )
    if len(prompt) + params.min_tokens > model.max_sequence_tokens:
        raise invalid_field(
            "min_tokens",
            f"{len(prompt)} prompt tokens and min_tokens={params.min_tokens} are more "
            f"than the context of {model.max_sequence_tokens} tokens",
        )


def _request_id(request: EngineCoreRequest) -> str:
    request_id: str = request.request_id
    if len(request_id.encode()) > MAX_REQUEST_ID_BYTES:
        raise invalid_field(
            "request_id", f"the request id is longer than {MAX_REQUEST_ID_BYTES} bytes"
        )
    return request_id


def _priority(priority: int, policy: str) -> int:
    if priority and policy != "priority":
        raise unsupported(
            "priority", "priority needs priority scheduling, which is not in use"
        )
    if priority not in _INT32:
        raise invalid_field("priority", f"priority {priority} does not fit 32 bits")
    return priority


def _signed64(seed: int) -> int:
    """Children of a request count up from its seed, perhaps over the edge."""
    return (seed + 2**63) % 2**64 - 2**63


def _optional_ids(ids: Iterable[int] | None) -> TokenIds | None:
    return None if ids is None else TokenIds(token_ids=ids)


def _repetition(
    rule: RepetitionDetectionParams | None, most: int
) -> RepetitionRule | None:
    if rule is None or rule.max_pattern_size == 0:
        return None
    if max(rule.max_pattern_size, rule.min_count) > most:
        raise invalid_field(
            "repetition_detection",
            f"repetition_detection looks for more than the context of {most} tokens",
        )
    return RepetitionRule(
        max_pattern_size=rule.max_pattern_size,
        min_pattern_size=rule.min_pattern_size,
        min_count=rule.min_count,
    )


def _logprobs(params: SamplingParams) -> LogprobsRequest | None:
    if params.logprob_token_ids:
        return LogprobsRequest(token_ids=dict.fromkeys(params.logprob_token_ids))
    if params.logprobs is None:
        return None
    if params.logprobs < 0:
        raise unsupported("logprobs", "logprobs of the whole vocabulary (-1)")
    return LogprobsRequest(top_count=params.logprobs)


def _structured(
    request: EngineCoreRequest, outputs: StructuredOutputsParams | None, model: Model
) -> StructuredOutput | None:
    if outputs is None:
        return None
    message = StructuredOutput(
        **_constraint(outputs),
        disable_additional_properties=outputs.disable_additional_properties,
        reasoning_ended=request.reasoning_ended,
        reasoning_parser_kwargs_json=_json_or_empty(request.reasoning_parser_kwargs),
    )
    if (size := message.ByteSize()) > model.limits.max_grammar_bytes > 0:
        raise invalid_field(
            "structured_outputs",
            f"the schema or grammar has {size} bytes; at most "
            f"{model.limits.max_grammar_bytes} are taken",
        )
    return message


def _constraint(outputs: StructuredOutputsParams) -> dict[str, Any]:
    """The one constraint that is set; vLLM has checked that it is one."""
    if outputs.json is not None:
        schema = outputs.json
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return {"json_schema": text}
    if outputs.json_object is not None:
        return {"json_object": outputs.json_object}
    if outputs.choice is not None:
        return {"choice": Choices(texts=outputs.choice)}
    for kind in ("regex", "grammar", "structural_tag"):
        if (text := getattr(outputs, kind)) is not None:
            return {kind: text}
    raise invalid_field("structured_outputs", "structured_outputs has no constraint")


def _json_or_empty(kwargs: dict[str, Any] | None) -> str:
    return json.dumps(kwargs, default=str) if kwargs else ""

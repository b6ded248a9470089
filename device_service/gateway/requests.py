"""A gateway's GenerateRequest -> requests for admission.

It becomes a `ttserve.v1.GenerateRequest` first, so that both take the same way:
one place knows the ranges, the limits and what an unset value means. What a
gateway may ask and nothing here can do is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import DecodeError
from smg_grpc_proto import vllm_engine_pb2

from device_service.admission import Admission, Candidate
from device_service.codec.requests import submission_from_generate
from device_service.codec.sampling import token_list
from device_service.description import ModelDescription
from device_service.frames import too_large
from device_service.gateway.stop_strings import StopStrings
from device_service.serving import Published
from ttserve.errors import invalid_field, unsupported
from ttserve.v1 import device_pb2, generation_pb2

_UNSUPPORTED = {
    "mm_inputs": "the model takes text only",
    "extra_mm_inputs": "the model takes text only",
    "media_refs": "the model takes text only",
    "kv_transfer_params": "KV blocks do not leave the device service",
    "kv_transfer_params_json": "KV blocks do not leave the device service",
    "data_parallel_rank": "the device service chooses the lane",
}
_UNSUPPORTED_PARAMS = {
    "prompt_logprobs": "log probabilities are reported for output tokens only",
    "truncate_prompt_tokens": "prompts are taken whole; send the tokens to be kept",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the outputs that a call asks for; `candidate.handle` is its index."""

    candidate: Candidate
    stop_strings: StopStrings | None


@dataclass(frozen=True, slots=True)
class GatewayCall:
    """A call that may be admitted. `stream` asks for tokens as they come."""

    request_id: str
    stream: bool
    prompt_tokens: int
    choices: tuple[Choice, ...]


def read_call(
    data: bytes,
    served: Published,
    admission: Admission,
    names: tuple[str, str],
) -> GatewayCall:
    """Decode and check a call. Any thread; it may be of any size.

    `names` are the id to take where the call names none, and the id that it has
    outside. Raises TTServeError.
    """
    model = served.description
    message = _parse(data, model)
    _refuse_unsupported(message)
    request_id = message.request_id or names[0]
    plain = _plain(message, served)
    count = max(1, message.sampling_params.n)
    if count > admission.capacity:
        raise invalid_field(
            "sampling_params.n",
            f"{count} outputs are more than can ever be queued ({admission.capacity})",
        )
    choices = []
    for index in range(count):
        own_id = request_id if count == 1 else f"{index}_{request_id}"
        if index and plain.sampling.HasField("seed"):
            plain.sampling.seed += 1  # else all outputs were the same
        submission = submission_from_generate(plain, model, own_id, names[1])
        choices.append(
            Choice(
                admission.prepare(replace(submission, handle=index)),
                StopStrings.of(message.sampling_params, submission, served.tokenizer),
            )
        )
    prompt_tokens = len(plain.prompt_token_ids)
    return GatewayCall(request_id, message.stream, prompt_tokens, tuple(choices))


def _parse(data: bytes, model: ModelDescription) -> Any:
    limit = model.limits.max_submission_bytes
    if len(data) > limit:
        raise too_large(len(data), limit)
    try:
        return vllm_engine_pb2.GenerateRequest.FromString(data)
    except DecodeError as error:
        raise invalid_field("request", "the message is no GenerateRequest") from error


def _refuse_unsupported(message: Any) -> None:
    for asked, what_for in (
        (message, _UNSUPPORTED),
        (message.sampling_params, _UNSUPPORTED_PARAMS),
    ):
        for name in _set_fields(asked):
            if name in what_for:
                raise unsupported(name, f"{name} is not served: {what_for[name]}")


def _set_fields(message: Any) -> Iterator[str]:
    return (field.name for field, _ in message.ListFields())


def _plain(message: Any, served: Published) -> device_pb2.GenerateRequest:
    params = message.sampling_params
    plain = device_pb2.GenerateRequest(
        prompt_token_ids=_prompt(message, served.tokenizer),
        sampling=_sampling(params),
        stop=generation_pb2.StopRules(
            max_output_tokens=params.max_tokens if _has(params, "max_tokens") else None,
            min_output_tokens=params.min_tokens,
            stop_token_ids=params.stop_token_ids,
        ),
        ignore_eos=params.ignore_eos,
        structured_output=_structured(params, served.description),
    )
    if _has(params, "logprobs"):
        if params.logprobs < 0:
            raise invalid_field(
                "logprobs", f"logprobs must be at least 0, not {params.logprobs}"
            )
        plain.logprobs.top_count = params.logprobs
        plain.logprobs.SetInParent()
    return plain


def _prompt(message: Any, tokenizer: Any) -> list[int]:
    match message.WhichOneof("input"):
        case "tokenized":
            return token_list(message.tokenized.input_ids)
        case "text":
            return list(tokenizer.encode(message.text))
    raise invalid_field("input", "the call has neither `tokenized` nor `text`")


def _sampling(params: Any) -> generation_pb2.Sampling:
    """Every number, as the gateway means it.

    It is told the model's defaults (GetModelInfo) and applies them itself, so what
    it leaves out is neutral; 0 stands for unset where 0 cannot be meant.
    """
    negative = [token for token in params.logit_bias if token < 0]
    if negative:
        raise invalid_field("logit_bias", f"logit_bias names token {negative[0]}")
    return generation_pb2.Sampling(
        temperature=params.temperature if _has(params, "temperature") else 1.0,
        top_p=params.top_p or 1.0,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty or 1.0,
        seed=params.seed if _has(params, "seed") else None,
        logit_bias=dict(params.logit_bias),
    )


def _structured(
    params: Any, model: ModelDescription
) -> generation_pb2.StructuredOutput | None:
    kind = params.WhichOneof("constraint")
    if kind is None:
        return None
    output = generation_pb2.StructuredOutput(
        disable_additional_properties=model.settings.disable_additional_properties,
        reasoning_ended=True if params.grammar_from_first_token else None,
    )
    if kind == "choice":
        output.choice.texts.extend(params.choice.choices)
        output.choice.SetInParent()
    else:
        setattr(output, kind, getattr(params, kind))
    return output


def _has(message: Any, field: str) -> bool:
    return bool(message.HasField(field))

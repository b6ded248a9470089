"""EngineCoreRequest -> Submission: nothing carried is lost, nothing refused passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.lora.request import LoRARequest
from vllm.sampling_params import (
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine import EngineCoreRequest

from frontend.codec.submission import Envelope, encode_submission
from tests.support.byte_model import VOCAB_SIZE
from tests.support.fake_device import MAX_SEQUENCE_TOKENS, model
from ttserve.errors import Reason, TTServeError
from ttserve.v1.generation_pb2 import Submission, SubmissionGroup
from ttserve.v1.model_pb2 import Model

MODEL = model()
IDS = st.integers(0, VOCAB_SIZE - 1)
ID_LISTS = st.lists(IDS, min_size=1, max_size=5, unique=True)


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32, allow_subnormal=False)


def request(params: SamplingParams | None = None, **changes: Any) -> EngineCoreRequest:
    fields: dict[str, Any] = {
        "request_id": "r",
        "prompt_token_ids": [1, 2],
        "mm_features": None,
        "sampling_params": params or SamplingParams(max_tokens=4),
        "pooling_params": None,
        "arrival_time": 1.0,
        "lora_request": None,
        "cache_salt": None,
        "data_parallel_rank": None,
    }
    return EngineCoreRequest(**(fields | changes))


def encode(
    asked: EngineCoreRequest, served: Model = MODEL, **envelope: Any
) -> Submission:
    """What arrives: the message after a trip over the wire."""
    message = encode_submission(asked, Envelope(**envelope), served)
    return Submission.FromString(message.SerializeToString())


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    greedy = draw(st.booleans())
    params = SamplingParams(
        temperature=0.0 if greedy else draw(number(0.125, 2.0)),
        top_p=draw(number(0.125, 1.0)),
        top_k=draw(st.integers(-1, 2 * VOCAB_SIZE)),
        min_p=draw(number(0.0, 1.0)),
        seed=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        presence_penalty=draw(number(-2.0, 2.0)),
        frequency_penalty=draw(number(-2.0, 2.0)),
        repetition_penalty=draw(number(0.125, 4.0)),
        logit_bias=draw(st.none() | st.dictionaries(IDS, number(-100, 100))),
        allowed_token_ids=draw(st.none() | ID_LISTS),
        _bad_words_token_ids=draw(st.none() | st.lists(ID_LISTS, max_size=3)),
        thinking_token_budget=draw(st.none() | st.integers(0, 2**40)),
        max_tokens=draw(st.integers(8, 400)),
        min_tokens=draw(st.integers(0, 8)),
        _eos_token_id=draw(st.none() | IDS),
        stop_token_ids=draw(ID_LISTS),
        _all_stop_token_ids=set(draw(ID_LISTS)),
        logprobs=draw(st.none() | st.integers(0, 20)),
        skip_reading_prefix_cache=draw(st.booleans()),
        repetition_detection=draw(repetition_rules()),
    )
    if draw(st.booleans()):
        params.logprobs, params.logprob_token_ids = None, draw(ID_LISTS)
    return params


def repetition_rules() -> st.SearchStrategy[RepetitionDetectionParams | None]:
    return st.none() | st.builds(
        RepetitionDetectionParams,
        max_pattern_size=st.integers(4, 20),
        min_pattern_size=st.integers(0, 4),
        min_count=st.integers(2, 9),
    )


@settings(deadline=None, max_examples=60)
@given(sampling_params())
def test_every_carried_value_arrives(params: SamplingParams) -> None:
    message = encode(request(params))
    sampling, stop = message.sampling, message.stop
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ):
        assert sampling.HasField(name)
        assert getattr(sampling, name) == getattr(params, name)
    assert sampling.top_k == (params.top_k if 0 < params.top_k < VOCAB_SIZE else 0)
    assert optional(sampling, "seed") == params.seed
    assert dict(sampling.logit_bias) == (params.logit_bias or {})
    assert list(sampling.allowed_token_ids.token_ids) == (
        params.allowed_token_ids or []
    )
    assert sampling.HasField("allowed_token_ids") == (
        params.allowed_token_ids is not None
    )
    words = [list(word.token_ids) for word in sampling.bad_words]
    assert words == (params.bad_words_token_ids or [])
    budget = params.thinking_token_budget
    expected = None if budget is None else min(budget, 2**32 - 1)
    assert optional(sampling, "thinking_token_budget") == expected

    assert stop.max_output_tokens == params.max_tokens
    assert stop.min_output_tokens == params.min_tokens
    assert optional(stop, "eos_token_id") == params.eos_token_id
    assert list(stop.stop_token_ids) == params.stop_token_ids
    assert set(stop.min_tokens_masked_ids) == params.all_stop_token_ids
    rule = params.repetition_detection
    assert stop.HasField("repetition") == (rule is not None)
    if rule is not None:
        for name in ("max_pattern_size", "min_pattern_size", "min_count"):
            assert getattr(stop.repetition, name) == getattr(rule, name)

    if params.logprob_token_ids:
        assert list(message.logprobs.token_ids) == params.logprob_token_ids
    else:
        assert message.HasField("logprobs") == (params.logprobs is not None)
        assert message.logprobs.top_count == (params.logprobs or 0)
    assert message.skip_prefix_cache == params.skip_reading_prefix_cache


def optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


@settings(deadline=None, max_examples=60)
@given(
    st.lists(IDS, min_size=1, max_size=50),
    st.text(min_size=1, max_size=20),
    st.none() | st.text(min_size=1, max_size=20),
    st.integers(-(2**31), 2**31 - 1),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)
def test_the_rest_of_a_request_arrives(
    prompt: list[int],
    request_id: str,
    salt: str | None,
    priority: int,
    trace: dict[str, str],
) -> None:
    served = model()
    served.scheduling.policy = "priority"
    asked = request(
        prompt_token_ids=prompt,
        request_id=request_id,
        cache_salt=salt,
        priority=priority,
        trace_headers=trace,
    )
    group = SubmissionGroup(group_id=3, count=2)
    message = encode(asked, served, external_request_id="ext", group=group)
    assert list(message.prompt_token_ids) == prompt
    assert message.request_id == request_id
    assert message.cache_salt == (salt or "")
    assert message.priority == priority
    assert dict(message.trace_headers) == trace
    assert message.external_request_id == "ext"
    assert message.group == group


@pytest.mark.parametrize(
    ("outputs", "kind", "value"),
    [
        ({"json": '{"a": 1}'}, "json_schema", '{"a": 1}'),
        ({"json": {"b": {}, "a": {}}}, "json_schema", '{"b": {}, "a": {}}'),
        ({"json": {}}, "json_schema", "{}"),
        ({"json_object": True}, "json_object", True),
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structural_tag": "{}"}, "structural_tag", "{}"),
    ],
)
def test_structured_outputs(outputs: dict[str, Any], kind: str, value: object) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**outputs))
    asked = request(
        params, reasoning_ended=False, reasoning_parser_kwargs={"k": {"x": 1}}
    )
    message = encode(asked).structured_output
    assert message.WhichOneof("constraint") == kind
    assert getattr(message, kind) == value
    assert optional(message, "reasoning_ended") is False
    assert json.loads(message.reasoning_parser_kwargs_json) == {"k": {"x": 1}}


def test_choices_arrive_where_nobody_made_a_grammar_of_them() -> None:
    outputs = StructuredOutputsParams(choice=["a", "b"])
    message = encode(request(SamplingParams(structured_outputs=outputs)))
    assert list(message.structured_output.choice.texts) == ["a", "b"]


def with_params(**fields: Any) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=4)
    for name, value in fields.items():
        setattr(params, name, value)
    return request(params)


@pytest.mark.parametrize(
    ("asked", "field", "reason"),
    [
        (with_params(prompt_logprobs=0), "prompt_logprobs", Reason.UNSUPPORTED),
        (with_params(extra_args={"a": 1}), "extra_args", Reason.UNSUPPORTED),
        (with_params(logprobs=-1), "logprobs", Reason.UNSUPPORTED),
        (
            with_params(trace_decode_token_ids=[1]),
            "trace_decode_token_ids",
            Reason.UNSUPPORTED,
        ),
        (
            request(lora_request=LoRARequest("a", 1, "/a")),
            "lora_request",
            Reason.UNSUPPORTED,
        ),
        (request(data_parallel_rank=0), "data_parallel_rank", Reason.UNSUPPORTED),
        (request(resumable=True), "resumable", Reason.UNSUPPORTED),
        (request(priority=1), "priority", Reason.UNSUPPORTED),
        (request(request_id="r" * 257), "request_id", Reason.INVALID_FIELD),
        (request(prompt_token_ids=[VOCAB_SIZE]), "prompt", Reason.INVALID_FIELD),
        (
            with_params(min_tokens=MAX_SEQUENCE_TOKENS),
            "min_tokens",
            Reason.INVALID_FIELD,
        ),
        (
            with_params(
                repetition_detection=RepetitionDetectionParams(
                    max_pattern_size=2**40, min_count=2
                )
            ),
            "repetition_detection",
            Reason.INVALID_FIELD,
        ),
        (
            with_params(
                structured_outputs=StructuredOutputsParams(
                    regex="a", whitespace_pattern=" "
                )
            ),
            "whitespace_pattern",
            Reason.UNSUPPORTED,
        ),
        (
            with_params(structured_outputs=StructuredOutputsParams(regex="a" * 70_000)),
            "structured_outputs",
            Reason.INVALID_FIELD,
        ),
    ],
)
def test_refused(asked: EngineCoreRequest, field: str, reason: Reason) -> None:
    with pytest.raises(TTServeError) as refusal:
        encode(asked)
    assert refusal.value.reason is reason
    assert refusal.value.metadata["field"] == field


def test_priorities_that_do_not_fit() -> None:
    served = model()
    served.scheduling.policy = "priority"
    with pytest.raises(TTServeError) as refusal:
        encode(request(priority=2**31), served)
    assert refusal.value.metadata["field"] == "priority"


def test_seeds_count_over_the_edge() -> None:
    message = encode(with_params(seed=2**63))
    assert message.sampling.seed == -(2**63)

"""Submissions and Generate calls -> vLLM's requests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams

from device_service.codec.requests import (
    submission_from_attach,
    submission_from_generate,
)
from device_service.codec.sampling import MAX_FLOAT32, SCALARS, token_list
from device_service.submission import Group
from tests.support.attach_client import submission
from tests.support.wire import MODEL
from ttserve.errors import Reason, TTServeError
from ttserve.v1 import device_pb2, generation_pb2

TRACEPARENT = f"00-{'1' * 32}-{'2' * 16}-01"


def decoded(message: generation_pb2.Submission) -> SamplingParams:
    """The sampling parameters of a submission, after the wire."""
    travelled = generation_pb2.Submission.FromString(message.SerializeToString())
    params = submission_from_attach(travelled).request.sampling_params
    assert params is not None
    return params


def refused_field(message: generation_pb2.Submission) -> str:
    """The field that a submission is refused for."""
    with pytest.raises(TTServeError) as caught:
        submission_from_attach(message)
    assert caught.value.reason is Reason.INVALID_FIELD
    return caught.value.metadata["field"]


# -- what is left out ------------------------------------------------------


@pytest.mark.parametrize("name", [scalar.name for scalar in SCALARS])
def test_every_scalar_is_explicit(name: str) -> None:
    message = submission(**{f"sampling__{name}": None})
    assert refused_field(message) == f"sampling.{name}"


@pytest.mark.parametrize("name", ["sampling", "stop"])
def test_required_messages(name: str) -> None:
    assert refused_field(submission(**{name: None})) == name


def test_most_tokens_are_explicit() -> None:
    message = submission(stop__max_output_tokens=None)
    assert refused_field(message) == "stop.max_output_tokens"


def test_what_may_be_unset_stays_unset() -> None:
    params = decoded(submission())
    assert params.seed is None
    assert params.eos_token_id is None
    assert params.logit_bias is None
    assert params.allowed_token_ids is None
    assert params.bad_words_token_ids is None
    assert params.logprobs is None
    assert params.structured_outputs is None
    assert params.repetition_detection is None
    assert params.thinking_token_budget is None


# -- ranges ----------------------------------------------------------------

OUTSIDE: dict[str, list[float]] = {
    "temperature": [-0.1, 2.1, math.nan, math.inf, -math.inf],
    "top_p": [0.0, 1.1, -1.0, math.nan, math.inf],
    "top_k": [2**31, 2**32 - 1],
    "min_p": [-0.1, 1.1, math.nan],
    "presence_penalty": [-2.1, 2.1, math.nan, math.inf],
    "frequency_penalty": [-2.1, 2.1, math.nan],
    "repetition_penalty": [0.0, -1.0, math.nan, math.inf],
}
EDGES: dict[str, list[float]] = {
    "temperature": [0.0, 2.0],
    "top_p": [1e-6, 1.0],
    "top_k": [0, 2**31 - 1],
    "min_p": [0.0, 1.0],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2.0],
    "repetition_penalty": [1e-6, MAX_FLOAT32],
}


def pairs(table: dict[str, list[float]]) -> list[tuple[str, float]]:
    assert set(table) == {scalar.name for scalar in SCALARS}
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), pairs(OUTSIDE))
def test_numbers_outside_their_range(name: str, value: float) -> None:
    message = submission(**{f"sampling__{name}": value})
    assert refused_field(message) == f"sampling.{name}"


@pytest.mark.parametrize(("name", "value"), pairs(EDGES))
def test_numbers_at_the_edge_of_their_range(name: str, value: float) -> None:
    params = decoded(
        submission(sampling__temperature=1.0, **{f"sampling__{name}": value})
        if name != "temperature"
        else submission(sampling__temperature=value)
    )
    assert getattr(params, name) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"stop__max_output_tokens": 0}, "stop.max_output_tokens"),
        ({"stop__min_output_tokens": 5}, "stop.min_output_tokens"),
        ({"sampling__logit_bias": {1: math.nan}}, "sampling.logit_bias"),
        ({"sampling__logit_bias": {1: math.inf}}, "sampling.logit_bias"),
        (
            {"stop__repetition": generation_pb2.RepetitionRule(min_count=2)},
            "stop.repetition",
        ),
        (
            {
                "stop__repetition": generation_pb2.RepetitionRule(
                    max_pattern_size=3, min_count=1
                )
            },
            "stop.repetition",
        ),
        (
            {"logprobs": generation_pb2.LogprobsRequest(top_count=3, token_ids=[1, 2])},
            "logprobs.top_count",
        ),
        (
            {"structured_output": generation_pb2.StructuredOutput(regex=" ")},
            "structured_output.regex",
        ),
        (
            {
                "structured_output": generation_pb2.StructuredOutput(
                    choice=generation_pb2.Choices()
                )
            },
            "structured_output.choice",
        ),
        (
            {"structured_output": generation_pb2.StructuredOutput(json_object=False)},
            "structured_output.json_object",
        ),
        (
            {
                "structured_output": generation_pb2.StructuredOutput(
                    json_object=True, reasoning_parser_kwargs_json="[]"
                )
            },
            "structured_output.reasoning_parser_kwargs_json",
        ),
    ],
)
def test_ill_formed(changes: dict[str, Any], field: str) -> None:
    assert refused_field(submission(**changes)) == field


# -- what arrives ----------------------------------------------------------


def float32(low: float, high: float, **rest: Any) -> st.SearchStrategy[float]:
    return st.floats(float(np.float32(low)), float(np.float32(high)), width=32, **rest)


TOKENS = st.integers(0, 2**31)
SAMPLING = st.builds(
    generation_pb2.Sampling,
    temperature=float32(0.015625, 2.0),
    top_p=float32(0.0, 1.0, exclude_min=True),
    top_k=st.integers(0, 2**31 - 1),
    min_p=float32(0.0, 1.0),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    presence_penalty=float32(-2.0, 2.0),
    frequency_penalty=float32(-2.0, 2.0),
    repetition_penalty=float32(0.0, 3.0, exclude_min=True),
    logit_bias=st.dictionaries(TOKENS, float32(-100.0, 100.0), max_size=5),
    allowed_token_ids=st.none()
    | st.builds(generation_pb2.TokenIds, token_ids=st.lists(TOKENS, max_size=4)),
    bad_words=st.lists(
        st.builds(
            generation_pb2.TokenIds,
            token_ids=st.lists(TOKENS, min_size=1, max_size=3),
        ),
        max_size=3,
    ),
    thinking_token_budget=st.none() | st.integers(0, 2**32 - 1),
)
STOP = st.builds(
    generation_pb2.StopRules,
    max_output_tokens=st.integers(10, 2**31),
    min_output_tokens=st.integers(0, 10),
    eos_token_id=st.none() | TOKENS,
    stop_token_ids=st.lists(TOKENS, unique=True, max_size=4),
    min_tokens_masked_ids=st.lists(TOKENS, unique=True, max_size=4),
    repetition=st.none()
    | st.builds(
        generation_pb2.RepetitionRule,
        max_pattern_size=st.integers(2, 50),
        min_pattern_size=st.integers(0, 2),
        min_count=st.integers(2, 9),
    ),
)


@given(sampling=SAMPLING, stop=STOP)
def test_sampling_params_say_what_the_messages_say(
    sampling: generation_pb2.Sampling, stop: generation_pb2.StopRules
) -> None:
    params = decoded(submission(sampling=sampling, stop=stop))
    for scalar in SCALARS:
        assert getattr(params, scalar.name) == getattr(sampling, scalar.name)
    assert params.seed == (sampling.seed if sampling.HasField("seed") else None)
    assert (params.logit_bias or {}) == dict(sampling.logit_bias)
    if sampling.HasField("allowed_token_ids"):
        assert params.allowed_token_ids == sampling.allowed_token_ids.token_ids
    assert (params.bad_words_token_ids or []) == [
        word.token_ids for word in sampling.bad_words
    ]
    assert params.max_tokens == stop.max_output_tokens
    assert params.min_tokens == stop.min_output_tokens
    eos = stop.eos_token_id if stop.HasField("eos_token_id") else None
    assert params.eos_token_id == eos
    assert params.stop_token_ids == stop.stop_token_ids
    assert params.all_stop_token_ids == {
        *stop.stop_token_ids,
        *stop.min_tokens_masked_ids,
    }
    if stop.HasField("repetition"):
        rule = params.repetition_detection
        assert rule is not None
        assert rule.max_pattern_size == stop.repetition.max_pattern_size
        assert rule.min_count == stop.repetition.min_count


@pytest.mark.edge("42b")
@pytest.mark.feature(122)
@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_every_signed_seed_is_a_seed(seed: int) -> None:
    assert decoded(submission(sampling__seed=seed)).seed == seed


@pytest.mark.parametrize(
    ("message", "logprobs", "named", "count"),
    [
        (generation_pb2.LogprobsRequest(), 0, None, 0),
        (generation_pb2.LogprobsRequest(top_count=5), 5, None, 5),
        (generation_pb2.LogprobsRequest(token_ids=[4, 5]), None, [4, 5], 2),
        (
            generation_pb2.LogprobsRequest(token_ids=[4, 5], top_count=2),
            None,
            [4, 5],
            2,
        ),
    ],
)
def test_logprobs(
    message: generation_pb2.LogprobsRequest,
    logprobs: int | None,
    named: list[int] | None,
    count: int,
) -> None:
    params = decoded(submission(logprobs=message))
    assert params.logprobs == logprobs
    assert params.logprob_token_ids == named
    assert params.num_logprobs == count


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        (generation_pb2.StructuredOutput(json_schema="{}"), "json", "{}"),
        (generation_pb2.StructuredOutput(json_object=True), "json_object", True),
        (generation_pb2.StructuredOutput(regex="a+"), "regex", "a+"),
        (
            generation_pb2.StructuredOutput(grammar="root ::= x"),
            "grammar",
            "root ::= x",
        ),
        (
            generation_pb2.StructuredOutput(
                choice=generation_pb2.Choices(texts=["a", "b"])
            ),
            "choice",
            ["a", "b"],
        ),
        (
            generation_pb2.StructuredOutput(structural_tag="{}"),
            "structural_tag",
            "{}",
        ),
    ],
)
def test_constraints(
    message: generation_pb2.StructuredOutput, name: str, value: object
) -> None:
    constraint = decoded(submission(structured_output=message)).structured_outputs
    assert constraint is not None
    assert getattr(constraint, name) == value


def test_the_rest_of_a_submission() -> None:
    message = submission(
        7,
        cache_salt="salt",
        group=generation_pb2.SubmissionGroup(group_id=3, count=2),
        trace_headers={"traceparent": TRACEPARENT},
        skip_prefix_cache=True,
        external_request_id="from-outside",
        priority=-4,
        structured_output=generation_pb2.StructuredOutput(
            regex="a", reasoning_ended=False, reasoning_parser_kwargs_json='{"x": 1}'
        ),
    )
    decoded_ = submission_from_attach(message)
    assert decoded_.handle == 7
    assert decoded_.group == Group(3, 2)
    assert decoded_.external_request_id == "from-outside"
    request = decoded_.request
    assert request.request_id == "request-7"
    assert request.prompt_token_ids == [5, 6, 7]
    assert request.cache_salt == "salt"
    assert request.trace_headers == {"traceparent": TRACEPARENT}
    assert request.priority == -4
    assert request.external_req_id == "from-outside"
    assert request.reasoning_ended is False
    assert request.reasoning_parser_kwargs == {"x": 1}
    assert request.sampling_params is not None
    assert request.sampling_params.skip_reading_prefix_cache is True


def test_empty_texts_are_none() -> None:
    request = submission_from_attach(submission()).request
    assert request.cache_salt is None
    assert request.trace_headers is None
    assert request.external_req_id is None
    assert request.reasoning_ended is None


@given(st.lists(st.integers(0, 9), max_size=20))
def test_token_list_keeps_order_and_number(ids: list[int]) -> None:
    assert token_list(iter(ids)) == ids


def test_token_list_over_many_slices() -> None:
    assert token_list(range(10_000)) == list(range(10_000))


# -- Generate --------------------------------------------------------------


def generated(**request: Any) -> SamplingParams:
    """The sampling parameters of a Generate call."""
    message = device_pb2.GenerateRequest(prompt_token_ids=[1, 2], **request)
    params = submission_from_generate(message, MODEL, "r", "").request.sampling_params
    assert params is not None
    return params


@pytest.mark.feature(154)
def test_generate_given_values_win_over_defaults() -> None:
    params = generated(sampling=generation_pb2.Sampling(temperature=0.25, top_k=0))
    assert (params.temperature, params.top_k) == (0.25, 0)


def test_generate_without_anything() -> None:
    params = generated()
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 7, 1.0)
    assert params.max_tokens == 510
    assert (params.eos_token_id, params.stop_token_ids) == (2, [3])
    assert params.all_stop_token_ids == {2, 3}


def test_generate_ignoring_eos_still_masks_it_at_first() -> None:
    params = generated(
        ignore_eos=True, stop=generation_pb2.StopRules(min_output_tokens=2)
    )
    assert params.eos_token_id is None
    assert params.stop_token_ids == []
    assert params.all_stop_token_ids == {2, 3}


def test_generate_with_another_eos() -> None:
    params = generated(stop=generation_pb2.StopRules(eos_token_id=9))
    assert (params.eos_token_id, params.stop_token_ids) == (9, [])

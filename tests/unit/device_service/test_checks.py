"""Admission's table: one submission per rule that breaks it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from device_service.checks import check
from device_service.codec.requests import submission_from_attach
from tests.support.attach_client import submission
from tests.support.wire import MODEL, model_with
from ttserve.errors import Reason, TTServeError
from ttserve.v1 import generation_pb2

IDS = generation_pb2.TokenIds
SAMPLED = {"sampling__temperature": 1.0}

BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("request_id", {"request_id": ""}),
    ("request_id", {"request_id": "x" * 257}),
    ("external_request_id", {"external_request_id": "x" * 1025}),
    ("cache_salt", {"cache_salt": "x" * 1025}),
    ("prompt_token_ids", {"prompt_token_ids": []}),
    ("prompt_token_ids", {"prompt_token_ids": [1, 2, 1000]}),
    ("stop.stop_token_ids", {"stop__stop_token_ids": [1000]}),
    ("stop.stop_token_ids", {"stop__stop_token_ids": list(range(1025))}),
    ("stop.min_tokens_masked_ids", {"stop__min_tokens_masked_ids": [1000]}),
    ("stop.eos_token_id", {"stop__eos_token_id": 1000}),
    ("sampling.logit_bias", {"sampling__logit_bias": {1000: 1.0}}),
    ("sampling.logit_bias", {"sampling__logit_bias": dict.fromkeys(range(4097), 1.0)}),
    ("sampling.allowed_token_ids", {"sampling__allowed_token_ids": IDS()}),
    (
        "sampling.allowed_token_ids",
        {"sampling__allowed_token_ids": IDS(token_ids=[1000])},
    ),
    ("sampling.bad_words", {"sampling__bad_words": [IDS()]}),
    ("sampling.bad_words", {"sampling__bad_words": [IDS(token_ids=[1000])]}),
    (
        "sampling.bad_words",
        {"sampling__bad_words": [IDS(token_ids=[1] * 16_385)]},
    ),
    (
        "logprobs.top_count",
        {"logprobs": generation_pb2.LogprobsRequest(top_count=21)},
    ),
    (
        "logprobs.token_ids",
        {"logprobs": generation_pb2.LogprobsRequest(token_ids=[1000])},
    ),
    (
        "logprobs.token_ids",
        {"logprobs": generation_pb2.LogprobsRequest(token_ids=list(range(129)))},
    ),
    (
        "structured_output",
        {"structured_output": generation_pb2.StructuredOutput(regex="x" * 65_537)},
    ),
    (
        "structured_output",
        {
            "structured_output": generation_pb2.StructuredOutput(
                choice=generation_pb2.Choices(texts=["é" * 16_384, "é" * 16_385])
            )
        },
    ),
    ("group.count", {"group": generation_pb2.SubmissionGroup(count=17)}),
]

KEPT: list[dict[str, Any]] = [
    {},
    {"request_id": "x" * 256},
    {"prompt_token_ids": [0, 999]},
    {"stop__stop_token_ids": [999], "stop__eos_token_id": 0},
    {"sampling__logit_bias": {999: -100.0}},
    {"sampling__allowed_token_ids": IDS(token_ids=[999])},
    {"sampling__bad_words": [IDS(token_ids=[1, 2]), IDS(token_ids=[3])]},
    {"logprobs": generation_pb2.LogprobsRequest(top_count=20)},
    {"structured_output": generation_pb2.StructuredOutput(regex="x" * 65_536)},
    {"group": generation_pb2.SubmissionGroup(count=16)},
    {"prompt_token_ids": [1] * 511, "stop__max_output_tokens": 1},
]


def examine(**changes: Any) -> None:
    check(submission_from_attach(submission(**changes)), MODEL)


@pytest.mark.parametrize(("field", "changes"), BROKEN)
def test_rule_names_the_field_it_refuses(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(TTServeError) as caught:
        examine(**changes)
    assert caught.value.reason is Reason.INVALID_FIELD
    assert caught.value.metadata["field"] == field
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("changes", KEPT)
def test_what_is_just_within_the_rules(changes: dict[str, Any]) -> None:
    examine(**changes)


def test_token_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(TTServeError) as caught:
        examine(sampling__logit_bias={3: 1.0, 99_999_999: 5.0})
    assert caught.value.metadata == {
        "field": "sampling.logit_bias",
        "tokenId": "99999999",
        "vocabSize": "1000",
    }


def test_priority_needs_priority_scheduling() -> None:
    urgent = submission_from_attach(submission(priority=1))
    with pytest.raises(TTServeError) as caught:
        check(urgent, MODEL)
    assert caught.value.reason is Reason.UNSUPPORTED
    check(urgent, model_with(policy="priority"))


def test_length_is_bounded_by_the_smaller_of_context_and_kv_cache() -> None:
    wanted = submission_from_attach(
        submission(prompt_token_ids=[1] * 60, stop__max_output_tokens=5)
    )
    check(wanted, MODEL)
    with pytest.raises(TTServeError) as caught:
        check(wanted, model_with(num_blocks=5))
    assert caught.value.reason is Reason.PROMPT_TOO_LONG
    assert caught.value.metadata["maxSequenceTokens"] == "64"


# -- whatever arrives ------------------------------------------------------

FULL = submission(
    sampling__seed=7,
    sampling__logit_bias={5: 1.0},
    sampling__allowed_token_ids=IDS(token_ids=[5, 6]),
    sampling__bad_words=[IDS(token_ids=[1, 2])],
    stop__stop_token_ids=[9],
    stop__eos_token_id=2,
    stop__repetition=generation_pb2.RepetitionRule(max_pattern_size=4, min_count=3),
    logprobs=generation_pb2.LogprobsRequest(top_count=3),
    structured_output=generation_pb2.StructuredOutput(
        regex="a+", reasoning_parser_kwargs_json='{"a": 1}'
    ),
    cache_salt="salt",
    group=generation_pb2.SubmissionGroup(group_id=1, count=2),
    trace_headers={"traceparent": "00"},
    external_request_id="outside",
).SerializeToString()


@settings(max_examples=500)
@given(
    places=st.lists(
        st.tuples(st.integers(0, len(FULL) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=8,
    ),
    cut=st.integers(0, len(FULL)),
)
def test_damaged_submissions_are_refused_or_served(
    places: list[tuple[int, int]], cut: int
) -> None:
    """Nothing but TTServeError comes out of decoding and checking."""
    data = bytearray(FULL)
    for place, value in places:
        data[place] = value
    try:
        message = generation_pb2.Submission.FromString(bytes(data[:cut] or data))
    except DecodeError:
        return
    with contextlib.suppress(TTServeError):
        check(submission_from_attach(message), MODEL)

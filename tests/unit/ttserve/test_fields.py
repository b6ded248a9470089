"""The field lists: complete for the installed vLLM, and they would notice."""

from __future__ import annotations

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from ttserve.fields import (
    ENGINE_CORE_REQUEST,
    SAMPLING_PARAMS,
    FieldListError,
    FieldLists,
    check_complete,
)

LISTS = FieldLists(frozenset({"a"}), frozenset({"b"}), {"c": None})


def test_complete() -> None:
    check_complete("Type", LISTS, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [(["a", "b", "c", "new"], "'new'"), (["a", "b"], "'c'")],
)
def test_a_changed_type_is_noticed(fields: list[str], complaint: str) -> None:
    with pytest.raises(FieldListError, match=complaint):
        check_complete("Type", LISTS, fields)


def test_a_field_on_two_lists_is_noticed() -> None:
    twice = FieldLists(frozenset({"a"}), frozenset({"a"}), {})
    with pytest.raises(FieldListError, match="on two lists"):
        check_complete("Type", twice, ["a"])


def test_new_vllm_field_is_noticed() -> None:
    fields = [*SamplingParams.__struct_fields__, "brand_new"]
    with pytest.raises(FieldListError, match="brand_new"):
        check_complete("SamplingParams", SAMPLING_PARAMS, fields)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(), None),
        (SamplingParams(extra_args={}), None),
        (SamplingParams(extra_args={"a": 1}), "extra_args"),
        (SamplingParams(prompt_logprobs=0), "prompt_logprobs"),
        (SamplingParams(trace_decode_token_ids=[1]), "trace_decode_token_ids"),
        (SamplingParams(routed_experts_prompt_start=3), "routed_experts_prompt_start"),
    ],
)
def test_first_refused(params: SamplingParams, field: str | None) -> None:
    assert SAMPLING_PARAMS.first_refused(params) == field


def test_first_refused_of_a_request() -> None:
    request = EngineCoreRequest(
        "r", [1], [], SamplingParams(), None, 0.0, None, None, None
    )
    assert ENGINE_CORE_REQUEST.first_refused(request) is None
    request.data_parallel_rank = 0
    assert ENGINE_CORE_REQUEST.first_refused(request) == "data_parallel_rank"

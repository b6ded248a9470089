"""Requests of a recording ask of sampling what those that were recorded asked."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from device_service.recording.events import RecordedRequest
from device_service.replay.requests import sampling_params
from device_service.sampling.facts import SamplingFacts

VOCABULARY = 320


def bad_words() -> SamplingParams:
    params = SamplingParams(bad_words=["no"])
    params._bad_words_token_ids = [[7, 8]]  # noqa: SLF001 - a tokenizer's job
    return params


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_k=20, seed=11),
        SamplingParams(temperature=0.7, top_k=1),
        SamplingParams(frequency_penalty=0.4),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(logprobs=0),
        SamplingParams(logprobs=5),
        SamplingParams(min_tokens=3, stop_token_ids=[4]),
        SamplingParams(min_tokens=3),
        SamplingParams(min_p=0.1),
        SamplingParams(logit_bias={3: 1.0}),
        SamplingParams(allowed_token_ids=[3, 4]),
        SamplingParams(thinking_token_budget=9),
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+")),
        bad_words(),
    ],
    ids=lambda params: " ".join(_said(params)),
)
def test_what_decides_about_the_site_is_kept(params: SamplingParams) -> None:
    facts = SamplingFacts.of(params, 5, VOCABULARY)
    request = RecordedRequest(
        request_id="r",
        external_request_id="",
        session_number=1,
        prompt_tokens=5,
        max_tokens=16,
        priority=0,
        awaits_grammar=facts.structured,
        skip_prefix_cache=False,
        sampling=facts,
        block_hashes=[],
    )
    again = SamplingFacts.of(sampling_params(request, VOCABULARY), 5, VOCABULARY)
    for name in (
        "greedy",
        "num_logprobs",
        "host_only",
        "min_tokens",
        "penalised",
        "structured",
        "prompt_tokens",
    ):
        assert getattr(again, name) == getattr(facts, name), name
    assert again.top_k == facts.top_k
    assert (again.seed is None) == (facts.seed is None)


def _said(params: SamplingParams) -> list[str]:
    default = SamplingParams()
    names: list[str] = [
        name
        for name in params.__struct_fields__
        if _plain(getattr(params, name)) != _plain(getattr(default, name))
    ]
    return names


def _plain(value: Any) -> Any:
    return str(value)

"""Where a step samples: each condition alone sends all its rows to the host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from device_service.records import Admitted, Phase, PlannedRow, SamplingSite
from device_service.sampling.facts import PADDING, SamplingFacts
from device_service.sampling.site import (
    HOST_REASONS,
    SitePolicy,
    SiteQuestion,
    SiteRule,
    decide,
)
from device_service.sequence import Sequence
from tests.support.rig import ListSink
from tests.unit.device_service.sampling.batches import make_request

VOCABULARY = 1000
PROMPT = 4

ELIGIBLE = SitePolicy(
    vocab_size=VOCABULARY,
    mode="all",
    max_device_top_k=32,
    device_grammar=True,
    top_logprobs=True,
    devices=8,
)


def facts(**sampling: Any) -> SamplingFacts:
    params = SamplingParams(**({"temperature": 1.0, "top_k": 32} | sampling))
    return SamplingFacts.of(params, PROMPT, VOCABULARY)


def planned(place: int, *, start: int = 10, emits: bool = True) -> PlannedRow:
    return PlannedRow(f"request-{place}", 0, place, start, 1, emits)


def ask(
    *rows: SamplingFacts,
    policy: SitePolicy = ELIGIBLE,
    phase: Phase = Phase.DECODE,
    emits: bool = True,
) -> tuple[SamplingSite, str]:
    """The verdict on these rows beside one that has nothing to it."""
    all_rows = (facts(), *rows)
    where = [planned(place) for place in range(len(all_rows))]
    where[-1] = planned(len(all_rows) - 1, emits=emits)
    verdict = decide(SiteQuestion(policy, phase, where, all_rows))
    return verdict.site, verdict.reason


@dataclass(frozen=True)
class Case:
    """One thing that differs from a step that samples on the device."""

    row: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    phase: Phase = Phase.DECODE
    emits: bool = True
    both: dict[str, Any] = field(default_factory=dict)
    """Holds on either side of the difference."""


GRAMMAR = {"structured_outputs": StructuredOutputsParams(choice=["a"])}
PENALTY = {"presence_penalty": 0.5}

CASES: dict[str, list[Case]] = {
    "mode_unset": [Case(policy={"mode": None})],
    "mode_decode_only": [Case(policy={"mode": "decode_only"}, phase=Phase.PREFILL)],
    "intermediate_chunk": [Case(emits=False, phase=Phase.PREFILL)],
    "custom_logits_processors": [Case(policy={"custom_processors": True})],
    "device_penalties": [
        Case(policy={"device_penalties": False}, both=penalty)
        for penalty in (
            PENALTY,
            {"frequency_penalty": -0.5},
            {"repetition_penalty": 1.1},
        )
    ],
    "penalties_in_prefill": [Case(phase=Phase.PREFILL, both=PENALTY)],
    "allowed_token_ids": [Case({"allowed_token_ids": [1, 2]})],
    "bad_words": [Case({"_bad_words_token_ids": [[7]]})],
    "logit_bias": [Case({"logit_bias": {5: 1.0}})],
    "min_p": [Case({"min_p": 0.1})],
    "thinking_token_budget": [Case({"thinking_token_budget": 5})],
    "logprob_token_ids": [Case({"logprobs": 1, "logprob_token_ids": [3]})],
    "min_tokens": [Case({"min_tokens": 8, "stop_token_ids": [9]})],
    "device_grammar": [Case(policy={"device_grammar": False}, both=GRAMMAR)],
    "grammar_in_prefill": [Case(phase=Phase.PREFILL, both=GRAMMAR)],
    "grammar_with_logprobs": [Case({"logprobs": 0}, both=GRAMMAR)],
    "logprobs_mode": [Case(policy={"raw_logprobs": False}, both={"logprobs": 0})],
    "logprobs_devices": [
        Case(policy={"devices": count}, both={"logprobs": 0}) for count in (1, 4, 16)
    ],
    "top_logprobs": [Case(policy={"top_logprobs": False}, both={"logprobs": 1})],
    "max_device_top_k": [Case({"top_k": top_k}) for top_k in (33, 0, -1, VOCABULARY)],
    "seeded_sampling_policy": [
        Case(policy={"seeded_on_host": True}, both={"seed": 3}),
        Case(policy={"seeded_on_host": True}, both={"seed": 3, "temperature": 0.0}),
    ],
}


def test_every_reason_has_a_case() -> None:
    assert list(CASES) == list(HOST_REASONS)


@pytest.mark.feature(116, 118, 119, 125, 134)
@pytest.mark.parametrize(
    ("reason", "case"),
    [(reason, case) for reason, cases in CASES.items() for case in cases],
)
def test_each_condition_alone_moves_the_step_to_the_host(
    reason: str, case: Case
) -> None:
    """The same step without the one difference samples on the device."""
    before = [facts(**case.both)] if case.both else [facts()]
    assert ask(*before) == (SamplingSite.DEVICE, "eligible")
    after = [*before, facts(**case.row)] if case.row else before
    verdict = ask(
        *after,
        policy=replace(ELIGIBLE, **case.policy),
        phase=case.phase,
        emits=case.emits,
    )
    assert verdict == (SamplingSite.HOST, reason)


@pytest.mark.feature(118)
@pytest.mark.parametrize("top_k", [1, 32])
def test_the_largest_top_k_stays_on_the_device(top_k: int) -> None:
    assert ask(facts(top_k=top_k))[0] is SamplingSite.DEVICE


@pytest.mark.feature(118)
@pytest.mark.edge(38, 39)
def test_greedy_rows_may_have_any_top_k() -> None:
    assert ask(facts(temperature=0.0, top_k=0))[0] is SamplingSite.DEVICE
    unlimited = replace(ELIGIBLE, max_device_top_k=None)
    assert ask(facts(top_k=0), policy=unlimited)[0] is SamplingSite.DEVICE


def test_a_step_of_chunks_samples_nowhere() -> None:
    chunk = planned(0, emits=False)
    verdict = decide(SiteQuestion(ELIGIBLE, Phase.PREFILL, [chunk], [facts()]))
    assert (verdict.site, verdict.reason) == (SamplingSite.NONE, "intermediate_chunks")


@pytest.mark.feature(125)
@pytest.mark.parametrize("devices", [8, 32])
def test_logprobs_on_the_device_by_number_of_devices(devices: int) -> None:
    policy = replace(ELIGIBLE, devices=devices, top_logprobs=False)
    assert ask(facts(logprobs=0), policy=policy)[0] is SamplingSite.DEVICE
    assert ask(facts(logprobs=5), policy=policy)[1] == "top_logprobs"


def test_min_tokens_count_until_they_are_there() -> None:
    row = facts(min_tokens=6, stop_token_ids=[9])
    sites = [
        decide(
            SiteQuestion(ELIGIBLE, Phase.DECODE, [planned(0, start=start)], [row])
        ).site
        # The step at position p chooses output number p + 1 - prompt, from 0.
        for start in (PROMPT + 4, PROMPT + 5)
    ]
    assert sites == [SamplingSite.HOST, SamplingSite.DEVICE]


def test_min_tokens_without_anything_to_forbid() -> None:
    assert ask(facts(min_tokens=9, ignore_eos=True))[0] is SamplingSite.DEVICE


# -- facts ---------------------------------------------------------------------


@pytest.mark.feature(120)
@pytest.mark.edge(37)
def test_one_candidate_has_no_top_p() -> None:
    assert facts(top_k=1, top_p=0.7).top_p == 0.0
    assert facts(top_k=2, top_p=0.7).top_p == 0.7


@pytest.mark.feature(122)
@pytest.mark.edge("42b")
@pytest.mark.parametrize("seed", [0, -2, 2**63 - 1, -(2**63)])
def test_seeds_stay_what_they_are(seed: int) -> None:
    assert facts(seed=seed).seed == seed
    assert facts(seed=-1).seed is None


@pytest.mark.parametrize(
    ("sampling", "name", "value"),
    [
        ({"top_k": 0}, "top_k", VOCABULARY),
        ({"top_k": -1}, "top_k", VOCABULARY),
        ({"top_k": VOCABULARY + 5}, "top_k", VOCABULARY),
        ({}, "num_logprobs", -2),
        ({"logprobs": 0}, "num_logprobs", 0),
        ({"logprobs": 3}, "num_logprobs", 3),
        ({"logprobs": -1}, "num_logprobs", VOCABULARY),
        ({"temperature": 0.0}, "top_k", VOCABULARY),
    ],
)
def test_values_as_the_contract_wants_them(
    sampling: dict[str, Any], name: str, value: object
) -> None:
    assert getattr(facts(**sampling), name) == value


# -- the rule in the planner ------------------------------------------------------


def _sequence(**sampling: Any) -> Sequence:
    request = make_request(**({"temperature": 0.0} | sampling))
    admitted = Admitted(
        request=request,
        sink=ListSink(),
        session_number=1,
        handle=1,
        external_request_id="",
        top_logprobs=None,
        awaits_grammar=False,
    )
    assert request.sampling_params is not None
    read = SamplingFacts.of(
        request.sampling_params, request.num_prompt_tokens, VOCABULARY
    )
    return Sequence.admit(
        admitted, read, lane=0, order=(0, 1), max_model_len=512, now=0.0
    )


def _rows(*sequences: Sequence, start: int = 20) -> list[PlannedRow]:
    return [
        PlannedRow(sequence.request_id, 0, row, start, 1, emits=True)
        for row, sequence in enumerate(sequences)
    ]


def test_steady_decode_is_answered_from_memory_until_rows_change() -> None:
    plain, biased = _sequence(), _sequence(logit_bias={4: 1.0})
    live = {s.request_id: s for s in (plain, biased)}
    rule = SiteRule(ELIGIBLE, live)
    first = rule(Phase.DECODE, _rows(plain))
    # What a request asks for cannot change, so it is not looked at again.
    plain.sampling = replace(PADDING, host_only="logit_bias")
    assert rule(Phase.DECODE, _rows(plain)) is first
    assert rule(Phase.DECODE, _rows(plain, biased)).reason == "logit_bias"
    assert rule(Phase.DECODE, _rows(biased)).reason == "logit_bias"


def test_a_pending_min_tokens_is_asked_again_every_step() -> None:
    held = _sequence(min_tokens=3, stop_token_ids=[7])
    rule = SiteRule(ELIGIBLE, {held.request_id: held})
    prompt = held.sampling.prompt_tokens
    reasons = [
        rule(Phase.DECODE, _rows(held, start=prompt + produced)).reason
        for produced in range(4)
    ]
    assert reasons == ["min_tokens", "min_tokens", "eligible", "eligible"]

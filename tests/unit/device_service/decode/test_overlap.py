"""When a decode step overlaps the one before: each condition alone makes it wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from device_service.batch.inputs import DecodeInput
from device_service.decode.overlap import (
    DRAIN_REASONS,
    OverlapPolicy,
    OverlapQuestion,
    decide,
)
from device_service.mesh.driver import TraceMode
from device_service.mesh.interface import MeshPoisoned, StepHandle, StepResult
from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.records import FinishKind, Phase, SamplingSite, StepRecord
from device_service.sampling.facts import SamplingFacts
from tests.support.rig import Rig, Stream
from tests.tiny_models import write_tiny_model
from ttserve.errors import Reason
from ttserve.sim_model import sim_model_dir

VOCABULARY = 1000


def facts(**sampling: Any) -> SamplingFacts:
    params = SamplingParams(**({"temperature": 1.0, "top_k": 8} | sampling))
    params.update_from_generation_config({"eos_token_id": 7})
    return SamplingFacts.of(params, 4, VOCABULARY)


PLAIN = facts()

STEADY = OverlapQuestion(
    policy=OverlapPolicy(
        asynchronous=True, resident_inputs=True, custom_processors=False
    ),
    phase=Phase.DECODE,
    site=SamplingSite.DEVICE,
    facts=(PLAIN, PLAIN),
)


def beside_a_plain_row(**sampling: Any) -> OverlapQuestion:
    return replace(STEADY, facts=(PLAIN, facts(**sampling)))


JSON = StructuredOutputsParams(json={"type": "object"})

CONDITIONS: dict[str, OverlapQuestion] = {
    "sync_mode": replace(STEADY, policy=replace(STEADY.policy, asynchronous=False)),
    "inputs_not_resident": replace(
        STEADY, policy=replace(STEADY.policy, resident_inputs=False)
    ),
    "custom_logits_processors": replace(
        STEADY, policy=replace(STEADY.policy, custom_processors=True)
    ),
    "after_prefill": replace(STEADY, phase=Phase.PREFILL),
    "host_sampling": replace(STEADY, site=SamplingSite.HOST),
    "structured_output": beside_a_plain_row(structured_outputs=JSON),
    "penalties": beside_a_plain_row(presence_penalty=0.5),
    "allowed_token_ids": beside_a_plain_row(allowed_token_ids=[1, 2]),
    "bad_words": replace(STEADY, facts=(PLAIN, replace(PLAIN, host_only="bad_words"))),
    "logit_bias": beside_a_plain_row(logit_bias={1: 2.0}),
    "min_p": beside_a_plain_row(min_p=0.1),
    "min_tokens": beside_a_plain_row(min_tokens=3),
    # 0 asks for the chosen token's own, and counts (contract 2.7).
    "logprobs": beside_a_plain_row(logprobs=0),
    "prefill_due": replace(STEADY, prefill_due=True),
    "rows_changed": replace(STEADY, rows_changed=True),
    "last_token_in_flight": replace(STEADY, last_token_in_flight=True),
    "block_pressure": replace(STEADY, blocks_short=True),
}


def test_nothing_speaks_against_a_steady_step() -> None:
    verdict = decide(STEADY)
    assert (verdict.overlap, verdict.reason) == (True, "steady")


@pytest.mark.feature(109)
@pytest.mark.parametrize("reason", CONDITIONS)
def test_each_condition_alone_makes_the_step_wait(reason: str) -> None:
    verdict = decide(CONDITIONS[reason])
    assert (verdict.overlap, verdict.reason) == (False, reason)


def test_every_reason_is_shown() -> None:
    assert set(CONDITIONS) == set(DRAIN_REASONS)


# -- in the engine -----------------------------------------------------------

RigMaker = Callable[..., Rig]


@pytest.fixture
def make_rig() -> Iterator[RigMaker]:
    made: list[Rig] = []

    def make(**shape: Any) -> Rig:
        defaults: dict[str, Any] = {
            "async_scheduling": True,
            "site": {"mode": "all"},
            "max_model_len": 256,
        }
        made.append(Rig(sim_model_dir(), **(defaults | shape)))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def expected(rig: Rig, prompt: list[int], count: int) -> list[int]:
    vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    return expected_tokens(prompt, count, vocabulary)


def decodes(rig: Rig) -> list[StepRecord]:
    return [record for record in rig.records if record.phase is Phase.DECODE]


def start(rig: Rig, *lengths: int) -> list[tuple[Stream, list[int]]]:
    prompts = [[10 + place, 3, 5] for place in range(len(lengths))]
    return [
        (rig.submit(prompt, count), prompt)
        for prompt, count in zip(prompts, lengths, strict=True)
    ]


IN_THE_ENGINE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sync_mode": ({"async_scheduling": False}, {}),
    "inputs_not_resident": ({"trace_mode": TraceMode.NONE}, {}),
    "custom_logits_processors": (
        {"site": {"mode": "all", "custom_processors": True}},
        {},
    ),
    "host_sampling": ({"site": {}}, {}),
    "structured_output": (
        {},
        {"structured_outputs": StructuredOutputsParams(regex="[a-z]{9}")},
    ),
    "penalties": ({}, {"presence_penalty": 0.5}),
    "allowed_token_ids": ({}, {"allowed_token_ids": list(range(32, 127))}),
    "bad_words": ({}, {"_bad_words_token_ids": [[40]]}),
    "logit_bias": ({}, {"logit_bias": {40: 1.0}}),
    "min_p": ({}, {"min_p": 0.1, "temperature": 1.0}),
    "min_tokens": ({}, {"min_tokens": 3, "stop_token_ids": [300]}),
    "logprobs": ({}, {"logprobs": 0}),
}
"""What an engine is built with and a request asks for, by the reason shown."""


@pytest.mark.feature(109)
@pytest.mark.parametrize("reason", IN_THE_ENGINE)
def test_the_record_shows_why_a_step_waited(make_rig: RigMaker, reason: str) -> None:
    shape, sampling = IN_THE_ENGINE[reason]
    rig = make_rig(**shape)
    rig.submit([10, 3, 5], 8, **sampling)
    rig.run()
    *_, last = decodes(rig)
    assert (last.overlap.overlap, last.overlap.reason) == (False, reason)


@pytest.mark.edge(28)
@pytest.mark.feature(108, 111)
def test_steady_decode_overlaps_and_tokens_are_right(make_rig: RigMaker) -> None:
    rig = make_rig()
    asked = start(rig, 40, 40, 40)
    rig.run()
    for stream, prompt in asked:
        assert stream.token_ids == expected(rig, prompt, 40)
    reasons = [record.overlap.reason for record in decodes(rig)]
    assert reasons == ["after_prefill"] + ["steady"] * 38
    assert all(record.sampling.site is SamplingSite.DEVICE for record in decodes(rig))


@pytest.mark.feature(107)
def test_two_steps_are_in_flight_and_never_three(make_rig: RigMaker) -> None:
    rig = make_rig()
    start(rig, 30)
    seen = set()
    while rig.engine.step():
        future = rig.engine.snapshot()
        # The snapshot is taken at the start of the next turn, before its waits.
        rig.engine.step()
        seen.add(future.result(timeout=0).steps_in_flight)
    assert seen == {0, 1}


@pytest.mark.feature(109)
def test_a_new_request_waits_for_the_step_in_flight(make_rig: RigMaker) -> None:
    rig = make_rig()
    [(first, prompt)] = start(rig, 30)
    rig.run(steps=6)
    late = rig.submit([1, 2, 3], 5)
    rig.run()
    assert first.token_ids == expected(rig, prompt, 30)
    assert late.token_ids == expected(rig, [1, 2, 3], 5)
    drained = [r for r in rig.records if r.overlap.reason == "prefill_due"]
    assert [record.phase for record in drained] == [Phase.PREFILL]


@pytest.mark.edge(29)
@pytest.mark.feature(115)
def test_late_tokens_of_an_aborted_request_go_nowhere(make_rig: RigMaker) -> None:
    rig = make_rig()
    (gone, _), (stays, prompt) = start(rig, 60, 60)
    rig.run(steps=8)
    had = len(gone.token_ids)
    rig.abort(gone)
    rig.run()
    assert gone.finish is not None
    assert gone.finish.kind is FinishKind.ABORT
    assert len(gone.token_ids) == had
    assert stays.token_ids == expected(rig, prompt, 60)
    assert "rows_changed" in {record.overlap.reason for record in decodes(rig)}
    rig.assert_nothing_is_held()


def test_a_request_that_ends_takes_no_part_in_the_next_step(
    make_rig: RigMaker,
) -> None:
    rig = make_rig()
    (short, first), (long, second) = start(rig, 10, 30)
    rig.run()
    assert short.token_ids == expected(rig, first, 10)
    assert long.token_ids == expected(rig, second, 30)
    last = [r for r in decodes(rig) if r.overlap.reason == "last_token_in_flight"]
    assert [len(lane.rows) for record in last for lane in record.lanes] == [1]


@pytest.mark.edge(29)
def test_a_token_that_ends_a_request_ends_it_with_a_step_in_flight(
    make_rig: RigMaker,
) -> None:
    rig = make_rig()
    prompt = [10, 3, 5]
    stop = expected(rig, prompt, 20)
    place = next(i for i in range(5, 20) if stop[i] not in stop[:i])
    stream = rig.submit(prompt, 40, stop_token_ids=[stop[place]])
    other = rig.submit([9, 9], 40)
    rig.run()
    assert stream.token_ids == stop[: place + 1]
    assert other.token_ids == expected(rig, [9, 9], 40)
    rig.assert_nothing_is_held()


def test_blocks_run_short_before_a_row_must_give_way(make_rig: RigMaker) -> None:
    rig = make_rig(rows=4, num_blocks=12)
    asked = start(rig, 60, 60, 60, 60)
    rig.run()
    for stream, prompt in asked:
        assert stream.token_ids == expected(rig, prompt, 60)
    assert any(record.preempted for record in rig.records)
    for record in rig.records:
        if record.preempted:
            assert record.overlap.reason != "steady"
    assert "block_pressure" in {record.overlap.reason for record in rig.records}
    rig.assert_nothing_is_held()


@pytest.mark.edge(30)
@pytest.mark.feature(114)
def test_a_failed_step_takes_the_one_that_overlaps_it_along(
    make_rig: RigMaker,
) -> None:
    rig = make_rig(mesh_options={"sim": {"fail_steps": [6]}})
    [(stream, prompt)] = start(rig, 40)
    rig.run()
    assert stream.finish is not None
    assert stream.finish.error is not None
    assert stream.finish.error.reason is Reason.STEP_FAILED
    assert stream.token_ids == expected(rig, prompt, 5)
    errors = [(r.number, r.error) for r in rig.records if r.error]
    assert [number for number, _ in errors] == [6, 7]
    # It was one failure, not two in a row: the engine goes on.
    again = rig.submit(prompt, 12)
    rig.run()
    assert again.token_ids == expected(rig, prompt, 12)
    rig.assert_nothing_is_held()


def test_a_mesh_poisoned_behind_a_failed_step_ends_the_engine(
    make_rig: RigMaker,
) -> None:
    rig = make_rig(mesh_options={"sim": {"fail_steps": [6], "poison_step": 7}})
    [(stream, _)] = start(rig, 40)
    with pytest.raises(MeshPoisoned):
        rig.run()
    assert stream.finish is not None
    assert stream.finish.error is not None
    assert stream.finish.error.reason is Reason.STEP_FAILED


def test_pausing_leaves_nothing_in_flight(make_rig: RigMaker) -> None:
    rig = make_rig()
    start(rig, 60)
    rig.run(steps=5)
    paused = rig.engine.pause()
    rig.run()
    number = paused.result(timeout=0)
    state = rig.engine.snapshot()
    rig.run()
    assert state.result(timeout=0).steps_in_flight == 0
    asked = rig.engine.run_steps(4)
    rig.run()
    numbers = [record.number for record in asked.result(timeout=0)]
    assert numbers == list(range(number + 1, number + 5))


def test_without_async_scheduling_every_step_waits(make_rig: RigMaker) -> None:
    rig = make_rig(async_scheduling=False)
    [(stream, prompt)] = start(rig, 20)
    rig.run()
    assert stream.token_ids == expected(rig, prompt, 20)
    reasons = {record.overlap.reason for record in rig.records}
    assert reasons == {"nothing_in_flight", "sync_mode"}


@pytest.mark.feature(107)
@pytest.mark.parametrize("mesh", ["cpu", "sim"])
def test_a_step_is_submitted_before_the_one_in_flight_is_read(
    mesh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sim_model_dir()
    if mesh == "cpu":
        write_tiny_model("llama", tmp_path)
        model = tmp_path
    with Rig(
        model,
        mesh=mesh,
        async_scheduling=True,
        site={"mode": "all"},
        max_model_len=128,
    ) as rig:
        calls = _recorded(rig, monkeypatch)
        rig.submit([5, 6, 7], 9)
        rig.run()
    assert calls == [
        *("submit 1", "submit 2", "read 1", "submit 3", "read 2", "submit 4"),
        *("read 3", "submit 5", "read 4", "submit 6", "read 5", "submit 7"),
        *("read 6", "submit 8", "read 7", "read 8"),
    ]


def _recorded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which decode steps are submitted and read."""
    calls: list[str] = []
    submit = rig.driver.decode

    def decode(step: DecodeInput) -> StepHandle:
        number = 1 + sum(call.startswith("submit") for call in calls)
        calls.append(f"submit {number}")
        handle = submit(step)
        read = handle.result

        def result() -> StepResult:
            calls.append(f"read {number}")
            return read()

        monkeypatch.setattr(handle, "result", result)
        return handle

    monkeypatch.setattr(rig.driver, "decode", decode)
    return calls

"""Sampling on the device, through the engine, against the same requests on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams

from device_service.records import FinishKind, Phase, SamplingSite
from tests.support.rig import Rig, Stream

RigMaker = Callable[..., Rig]

ON_DEVICE = {"mode": "all"}

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "top_k": 30, "seed": 7},
    "negative seed": {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "seed": -3},
    "wide seed": {"temperature": 0.7, "top_k": 32, "seed": 2**62 + 1},
    "one candidate": {"temperature": 2.0, "top_k": 1, "top_p": 0.3},
}


def _submit_all(rig: Rig) -> list[Stream]:
    return [
        rig.submit([40 + place, 41, 42 + place], 20 + place, **sampling)
        for place, sampling in enumerate(REQUESTS.values())
    ]


def _sites(rig: Rig) -> set[SamplingSite]:
    return {record.sampling.site for record in rig.records}


@pytest.mark.feature(120, 121, 122)
@pytest.mark.parametrize("lanes", [1, 4])
def test_device_and_host_say_the_same(make_rig: RigMaker, lanes: int) -> None:
    device = make_rig(site=ON_DEVICE, lanes=lanes, rows=2 if lanes > 1 else 8)
    host = make_rig(lanes=lanes, rows=2 if lanes > 1 else 8)
    said, expected = _submit_all(device), _submit_all(host)
    device.run()
    host.run()
    assert _sites(device) == {SamplingSite.DEVICE}
    assert _sites(host) == {SamplingSite.HOST}
    for one, other in zip(said, expected, strict=True):
        assert one.finish is not None
        assert one.finish.error is None
        assert one.token_ids == other.token_ids
    device.assert_nothing_is_held()


@pytest.mark.feature(117)
def test_decode_only_leaves_prefill_to_the_host(make_rig: RigMaker) -> None:
    rig = make_rig(site={"mode": "decode_only"})
    rig.submit([50, 51, 52], 5)
    rig.run()
    verdicts = [(r.sampling.site.value, r.sampling.reason) for r in rig.records]
    assert verdicts == [("host", "mode_decode_only")] + [("device", "eligible")] * 4


@pytest.mark.parametrize("overlapped", [False, True])
def test_after_a_failed_step_others_go_on_from_inputs_of_their_own(
    make_rig: RigMaker, overlapped: bool
) -> None:
    """What the failed step left on the device must not be consumed."""
    rig = make_rig(
        site=ON_DEVICE,
        mesh_options={"sim": {"fail_steps": [6]}},
        async_scheduling=overlapped,
    )
    failed = rig.submit([40, 41], 20, temperature=1.0, top_k=30, seed=3)
    rig.run()
    assert failed.finish is not None
    assert failed.finish.kind is FinishKind.ERROR
    assert rig.generate([40, 41], 20, **REQUESTS["seeded"]) == make_rig().generate(
        [40, 41], 20, **REQUESTS["seeded"]
    )
    rig.assert_nothing_is_held()


@pytest.mark.feature(128)
def test_a_late_abort_leaves_the_neighbours_alone(make_rig: RigMaker) -> None:
    """A row leaves in the middle, and the batch falls back to a smaller bucket."""
    rig = make_rig(site=ON_DEVICE, async_scheduling=True)
    alone = make_rig()
    prompts = [[40 + place, 41] for place in range(6)]
    streams = [rig.submit(p, 30, **REQUESTS["seeded"]) for p in prompts]
    rig.run(8)
    for place in (5, 4, 2):
        rig.abort(streams[place])
        rig.run(3)
    rig.run()
    for place in (0, 1, 3):
        expected = alone.generate(prompts[place], 30, **REQUESTS["seeded"])
        assert streams[place].token_ids == expected
    for place in (5, 4, 2):
        expected = alone.generate(prompts[place], 30, **REQUESTS["seeded"])
        said = streams[place].token_ids
        assert said == expected[: len(said)]
    rig.assert_nothing_is_held()


GRAMMAR = {"structured_outputs": StructuredOutputsParams(regex="[a-z]{40}")}
LARGE = {"devices": 8, "top_logprobs": True}
RECORDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mode_unset": ({"mode": None}, {}),
    "mode_decode_only": ({"mode": "decode_only"}, {}),
    "custom_logits_processors": ({"custom_processors": True}, {}),
    "device_penalties": ({"device_penalties": False}, {"presence_penalty": 1.0}),
    "penalties_in_prefill": ({}, {"frequency_penalty": 1.0}),
    "allowed_token_ids": ({}, {"allowed_token_ids": [40, 41]}),
    "bad_words": ({}, {"_bad_words_token_ids": [[40]]}),
    "logit_bias": ({}, {"logit_bias": {40: 2.0}}),
    "min_p": ({}, {"temperature": 1.0, "top_k": 9, "min_p": 0.1}),
    "logprob_token_ids": (LARGE, {"logprobs": 1, "logprob_token_ids": [40]}),
    "min_tokens": ({}, {"min_tokens": 3, "stop_token_ids": [40]}),
    "device_grammar": ({"device_grammar": False}, GRAMMAR),
    "grammar_in_prefill": ({}, GRAMMAR),
    "grammar_with_logprobs": (LARGE, GRAMMAR | {"logprobs": 1}),
    "logprobs_mode": (LARGE | {"raw_logprobs": False}, {"logprobs": 1}),
    "logprobs_devices": ({"top_logprobs": True}, {"logprobs": 1}),
    "top_logprobs": (LARGE | {"top_logprobs": False}, {"logprobs": 1}),
    "max_device_top_k": ({}, {"temperature": 1.0, "top_k": 33}),
    "seeded_sampling_policy": ({"seeded_on_host": True}, {"seed": 1}),
}


@pytest.mark.feature(116)
@pytest.mark.parametrize("reason", RECORDED)
def test_the_record_of_a_step_says_why_the_host_sampled(
    make_rig: RigMaker, reason: str
) -> None:
    """Beside a plain request, all of whose other steps are on the device."""
    site, sampling = RECORDED[reason]
    rig = make_rig(site=ON_DEVICE | site)
    streams = [rig.submit([40, 41], 12), rig.submit([42, 43], 6, **sampling)]
    rig.run()
    for stream in streams:
        assert stream.finish is not None
        assert stream.finish.error is None
    for record in rig.records:
        on_host = record.sampling.site is SamplingSite.HOST
        assert on_host is (record.sampling.reason != "eligible")
    assert reason in {record.sampling.reason for record in rig.records}
    permanent = ("mode_unset", "custom_logits_processors")
    if reason not in permanent:
        assert rig.records[-1].sampling.site is SamplingSite.DEVICE


@pytest.mark.feature(75, 79, 116)
def test_chunks_are_sampled_on_the_host_or_nowhere(make_rig: RigMaker) -> None:
    rig = make_rig(site=ON_DEVICE, max_num_batched_tokens=16)
    rig.submit([40 + i % 20 for i in range(24)], 3)
    rig.submit([41 + i % 20 for i in range(24)], 3)
    rig.run()
    prefills = [r for r in rig.records if r.phase is Phase.PREFILL]
    assert [(r.sampling.site.value, r.sampling.reason) for r in prefills] == [
        ("none", "intermediate_chunks"),
        ("host", "intermediate_chunk"),
        ("device", "eligible"),
    ]

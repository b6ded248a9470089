"""Lanes on the `cpu` mesh: the tokens of `generate()`, in fp32, whatever the lane.

What one lane gives is compared with transformers elsewhere; here the same prompts
are spread over lanes that share one pool of storage and one forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from device_service.records import Phase, SamplingSite
from tests.support.reference import MIXED_PROMPTS, greedy
from tests.support.rig import Rig
from tests.tiny_models import END_OF_SEQUENCE, write_tiny_model

NEW_TOKENS = 24
PROMPTS = MIXED_PROMPTS

OVERLAPPING: dict[str, Any] = {"async_scheduling": True, "site": {"mode": "all"}}
CROWDED: dict[str, Any] = {"rows": 3, "lanes": 2, "num_blocks": 9}
SHAPES: dict[str, dict[str, Any]] = {
    "host-sampling": {},
    "device-sampling-of-decodes": {"site": {"mode": "decode_only"}},
    "overlapping": OVERLAPPING,
    "whole-prompts": {"enable_chunked_prefill": False, **OVERLAPPING},
    "chunked-overlapping": {"max_num_batched_tokens": 20, **OVERLAPPING},
    "without-prefix-cache": {"enable_prefix_caching": False},
    "preempted": {"enable_prefix_caching": False, **CROWDED},
    "preempted-overlapping": {**CROWDED, **OVERLAPPING},
}


@dataclass(frozen=True)
class Family:
    directory: Path
    answers: list[list[int]]


@pytest.fixture(scope="module", params=["llama", "gpt-oss"])
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Family]:
    directory = tmp_path_factory.mktemp(request.param)
    model = write_tiny_model(request.param, directory)
    yield Family(directory, [greedy(model, p, NEW_TOKENS) for p in PROMPTS])


@pytest.mark.feature(84, 86, 111)
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_those_of_generate_in_every_lane(family: Family, shape: str) -> None:
    options = {"rows": 2, "lanes": 4, "max_model_len": 128} | SHAPES[shape]
    with Rig(family.directory, mesh="cpu", **options) as rig:
        # The second time in another order, so that all meet another lane.
        for order in (range(6), range(5, -1, -1)):
            streams = {
                i: rig.submit(PROMPTS[i], NEW_TOKENS, stop_token_ids=[END_OF_SEQUENCE])
                for i in order
            }
            rig.run()
            assert [streams[i].token_ids for i in range(6)] == family.answers
        used = {
            lane.lane for record in rig.records for lane in record.lanes if lane.rows
        }
        assert used == set(range(options["lanes"]))
        assert any(r.preempted for r in rig.records) is shape.startswith("preempted")
        overlapped = any(record.overlap.overlap for record in rig.records)
        assert overlapped is ("async_scheduling" in options)
        decodes = [r for r in rig.records if r.phase is Phase.DECODE]
        on_device = {r.sampling.site is SamplingSite.DEVICE for r in decodes}
        assert on_device == {"site" in options}
        rig.assert_nothing_is_held()

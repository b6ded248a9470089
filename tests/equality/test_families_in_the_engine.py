"""Every family, through the whole engine: the tokens of `generate()`, in fp32.

The adapter's own tests compare logits; here scheduler, pages, chunks, prefix
cache and preemption are around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.reference import MIXED_PROMPTS, greedy
from tests.support.rig import Rig
from tests.tiny_models import END_OF_SEQUENCE, FAMILIES, write_tiny_model

NEW_TOKENS = 20
PROMPTS = MIXED_PROMPTS

SHAPES: dict[str, dict[str, Any]] = {
    "one-at-a-time": {"rows": 1},
    "all-at-once": {"enable_prefix_caching": False},
    "chunked": {"max_num_batched_tokens": 20},
    "whole": {"enable_chunked_prefill": False},
    "preempted": {"num_blocks": 9, "enable_prefix_caching": False},
}


@dataclass(frozen=True)
class Family:
    directory: Path
    answers: list[list[int]]


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Family]:
    directory = tmp_path_factory.mktemp(request.param)
    model = write_tiny_model(request.param, directory)
    yield Family(directory, [greedy(model, p, NEW_TOKENS) for p in PROMPTS])


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_those_of_generate(family: Family, shape: str) -> None:
    options = {"rows": 6, "max_model_len": 128} | SHAPES[shape]
    with Rig(family.directory, mesh="cpu", **options) as rig:
        for _ in range(2):  # the second time from the prefix cache, where there is one
            streams = [
                rig.submit(p, NEW_TOKENS, stop_token_ids=[END_OF_SEQUENCE])
                for p in PROMPTS
            ]
            rig.run()
            assert [stream.token_ids for stream in streams] == family.answers
        assert any(r.preempted for r in rig.records) is (shape == "preempted")
        rig.assert_nothing_is_held()

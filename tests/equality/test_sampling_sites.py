"""Sampling on the device and on the host agree on a real model, in fp32.

Tokens are equal and log probabilities within 1e-4; greedy ones are those of
transformers' `generate()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from device_service.mesh.driver import TraceMode
from device_service.records import Phase, SamplingSite, StepRecord, TokenLogprobs
from tests.support.reference import greedy
from tests.support.rig import Rig, Stream
from tests.tiny_models import write_tiny_model

PROMPTS = [
    [65 + (place * 7 + i) % 23 for i in range(3 + 9 * place)] for place in range(8)
]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "top_k": 11, "top_p": 0.8, "seed": -2},
    {"repetition_penalty": 1.6},
    {"temperature": 1.3, "seed": 2**40, "presence_penalty": 1.0},
    {"frequency_penalty": 1.1, "presence_penalty": -0.4},
    {"temperature": 1.8, "top_k": 1, "top_p": 0.4},
    {},
]
ASKED = [20, None, 3, None, 0, 5, None, 1]

ON_DEVICE = {"mode": "all", "devices": 8, "top_logprobs": True}
SHAPES: dict[str, dict[str, Any]] = {
    "lane": {"rows": 8},
    "overlapped": {"rows": 8, "async_scheduling": True},
    "overlapped lanes": {"rows": 2, "lanes": 4, "async_scheduling": True},
    "lanes": {"rows": 2, "lanes": 4},
    "preempted": {"rows": 8, "num_blocks": 26, "enable_prefix_caching": False},
    "chunked": {"rows": 8, "max_num_batched_tokens": 20},
    "without traces": {"rows": 8, "trace_mode": TraceMode.NONE},
    "decode only": {"rows": 8, "site": ON_DEVICE | {"mode": "decode_only"}},
}


@dataclass(frozen=True)
class Model:
    """`greedy`: tokens of prompts 0 and 7 by transformers. `on_host`: all requests
    on an engine that samples on the host.
    """

    directory: Path
    greedy: list[list[int]]
    on_host: list[Stream]


@pytest.fixture(scope="module", params=["llama", "gpt-oss"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    directory = tmp_path_factory.mktemp(request.param)
    reference = write_tiny_model(request.param, directory)
    answers = [greedy(reference, PROMPTS[i], _count(i)) for i in (0, 7)]
    yield Model(directory, answers, _run(directory, rows=8)[0])


def _count(place: int) -> int:
    """Requests end one after the other, so that rows and buckets change."""
    return 10 + 3 * place


def _run(directory: Path, **options: Any) -> tuple[list[Stream], list[StepRecord]]:
    with Rig(directory, mesh="cpu", max_model_len=128, **options) as rig:
        streams = [
            rig.submit(prompt, _count(place), logprobs=ASKED[place], **SAMPLING[place])
            for place, prompt in enumerate(PROMPTS)
        ]
        rig.run()
        rig.assert_nothing_is_held()
        return streams, rig.records


def _assert_close(one: TokenLogprobs, other: TokenLogprobs) -> None:
    assert one.chosen == pytest.approx(other.chosen, abs=1e-4)
    # The device gives the best 32, so what is worse has the rank of the last.
    assert min(one.chosen_rank, 32) == min(other.chosen_rank, 32)
    assert one.top_ids == other.top_ids
    assert one.top_values == pytest.approx(other.top_values, abs=1e-4)


@pytest.mark.feature(123, 125, 128)
@pytest.mark.parametrize("shape", SHAPES)
def test_both_sites_say_the_same(model: Model, shape: str) -> None:
    said, records = _run(model.directory, **{"site": ON_DEVICE} | SHAPES[shape])
    decodes = [record for record in records if record.phase is Phase.DECODE]
    assert {r.sampling.site for r in decodes} == {SamplingSite.DEVICE}
    for one, other in zip(said, model.on_host, strict=True):
        assert one.token_ids == other.token_ids
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
            _assert_close(mine, theirs)
    assert [said[0].token_ids, said[7].token_ids] == model.greedy

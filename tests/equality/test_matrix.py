"""Greedy tokens are those of `generate()`, however a request was run.

Every way of running is combined with every other. `make test` takes as many
combinations as put every two ways together once; the others are slow tests, and
`make bench ONLY=equality` runs them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from device_service.records import Phase, SamplingSite
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.reference import greedy
from tests.support.rig import Rig, Stream
from tests.tiny_models import write_tiny_model

BLOCK = 16
LONGEST = 80
SHARED = [65 + i % 11 for i in range(2 * BLOCK)]
PROMPTS = [
    [*SHARED, *(80 + (place * 5 + i) % 17 for i in range(2 + 3 * place))]
    for place in range(8)
]
TOKENS = [10 + 2 * place for place in range(8)]

Options = Mapping[str, Any]

FACTORS: dict[str, dict[str, Options]] = {
    "lanes": {"1 lane": {"rows": 8}, "4 lanes": {"rows": 2, "lanes": 4}},
    "steps": {
        "sync": {"async_scheduling": False},
        "async": {"async_scheduling": True},
    },
    "site": {"host": {}, "device": {"site": {"mode": "all"}}},
    "prefill": {
        "chunked": {"max_num_batched_tokens": 24},
        "whole": {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": LONGEST,
        },
    },
    "interleave": {
        "interleaved": {"interleave": InterleaveConfig(prefill_steps=1)},
        "prefill first": {"interleave": InterleaveConfig(enabled=False)},
    },
    "prefix": {
        "hit": {"enable_prefix_caching": True},
        "miss": {"enable_prefix_caching": False},
    },
    "blocks": {"roomy": {}, "preempted": {}},
}

FEW_BLOCKS = {"1 lane": 11, "4 lanes": 7}
"""Per lane, the null block included: too few for all rows to end side by side."""

Combination = tuple[str, ...]


def combinations() -> list[Combination]:
    """One way of each factor, in the order of FACTORS."""
    return list(itertools.product(*FACTORS.values()))


def pairs(combination: Combination) -> set[tuple[str, ...]]:
    """Every two ways that a combination puts together."""
    return set(itertools.combinations(combination, 2))


def pairwise() -> set[Combination]:
    """Few combinations in which every two ways meet: always the one that adds most."""
    chosen: set[Combination] = set()
    missing = set().union(*(pairs(each) for each in combinations()))
    while missing:
        best = max(combinations(), key=lambda each: len(pairs(each) & missing))
        chosen.add(best)
        missing -= pairs(best)
    return chosen


@dataclass(frozen=True)
class Model:
    """A tiny model, and what transformers says after each prompt."""

    directory: Path
    expected: list[list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    directory = tmp_path_factory.mktemp("matrix")
    reference = write_tiny_model("llama", directory)
    asked = zip(PROMPTS, TOKENS, strict=True)
    yield Model(directory, [greedy(reference, p, n) for p, n in asked])


def options_of(combination: Combination) -> dict[str, Any]:
    options: dict[str, Any] = {"max_model_len": LONGEST, "block_size": BLOCK}
    for ways, name in zip(FACTORS.values(), combination, strict=True):
        options |= ways[name]
    if "preempted" in combination:
        options["num_blocks"] = FEW_BLOCKS[combination[0]]
    return options


def run(rig: Rig, *, warm: bool) -> list[Stream]:
    """All prompts at once; `warm`: after one that leaves their shared prefix."""
    if warm:
        rig.generate(SHARED, 1)
    asked = zip(PROMPTS, TOKENS, strict=True)
    streams = [rig.submit(prompt, count) for prompt, count in asked]
    rig.run()
    return streams


FAST = pairwise()


@pytest.mark.parametrize(
    "combination",
    [
        pytest.param(
            each,
            id="-".join(each),
            marks=() if each in FAST else pytest.mark.slow,
        )
        for each in combinations()
    ],
)
def test_tokens_are_those_of_generate(model: Model, combination: Combination) -> None:
    hit = "hit" in combination
    with Rig(model.directory, mesh="cpu", **options_of(combination)) as rig:
        streams = run(rig, warm=hit)
        rig.assert_nothing_is_held()
        records = rig.records
    assert [stream.token_ids for stream in streams] == model.expected
    # The run was what its name says.
    decodes = [record for record in records if record.phase is Phase.DECODE]
    on_device = "device" in combination
    site = SamplingSite.DEVICE if on_device else SamplingSite.HOST
    assert {record.sampling.site for record in decodes} == {site}
    overlaps = any(record.overlap.overlap for record in records)
    assert overlaps is (on_device and "async" in combination)
    assert any(r.preempted for r in records) is ("preempted" in combination)
    cached = [s.prefill.cached_tokens for s in streams if s.prefill is not None]
    assert any(cached) is hit
    rows = [row for step in records for lane in step.lanes for row in lane.rows]
    assert any(r.intermediate_chunk for r in rows) is ("chunked" in combination)


def test_every_two_ways_meet_in_the_tests_that_always_run() -> None:
    met = set().union(*(pairs(each) for each in FAST))
    assert met == set().union(*(pairs(each) for each in combinations()))
    assert len(FAST) < 16

"""The simulated model says what the pure function says, and only when it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from device_service.mesh.driver import AdapterDriver, LoadSpec, load_model
from device_service.mesh.sim import SimMesh, SimProfile
from device_service.models.registry import resolve_adapter
from device_service.models.sim_cache import SimCache, mix_array
from device_service.models.sim_logits import SimLogits, choose_array
from device_service.models.sim_tokens import SimVocabulary, expected_tokens, mix
from tests.driving import Run, decode, page_table, prefill
from ttserve.errors import StartupError

BLOCK = 8
BLOCKS = 30
LIMIT = 128
VOCABULARY = SimVocabulary(size=300, first=32, count=95, eos=259)
CONFIG = LlamaConfig.from_dict(
    {
        "vocab_size": 300,
        "eos_token_id": 259,
        "bos_token_id": 256,
        "sim_output_ids": [32, 127],
    }
)
PROMPT = list(range(40, 75))

Open = Callable[..., AdapterDriver]


@pytest.fixture
def sim() -> Iterator[Open]:
    meshes: list[SimMesh] = []

    def open_driver(*, lanes: int = 1, rows: int = 4, **profile: Any) -> AdapterDriver:
        mesh = SimMesh(profile=SimProfile.parse(profile))
        mesh.open()
        meshes.append(mesh)
        adapter = resolve_adapter("LlamaForCausalLM", "sim")
        spec = LoadSpec(CONFIG, "sim", torch.float32, LIMIT, BLOCK, rows, lanes)
        driver = load_model(adapter, mesh, spec).allocate(BLOCKS, LIMIT)
        driver.warm_up(lambda _: None)
        return driver

    yield open_driver
    for mesh in meshes:
        mesh.close()


def _say(driver: AdapterDriver, run: Run, count: int) -> list[int]:
    while len(run.tokens) < count:
        decode(driver, [run])
    return run.tokens


def test_whole_prompt_and_decode(sim: Open) -> None:
    driver = sim()
    run = Run(PROMPT, 2, [5, 3, 17, 4, 29, 8, 1])
    prefill(driver, [(run, 0, len(PROMPT))])
    assert _say(driver, run, 20) == expected_tokens(PROMPT, 20, VOCABULARY)
    driver.close()


@pytest.mark.parametrize("chunks", [[1, 34], [8, 27], [7, 2, 26], [33, 1, 1]])
def test_chunks(sim: Open, chunks: list[int]) -> None:
    driver = sim()
    run = Run(PROMPT, 0, [5, 3, 17, 4, 29])
    start = 0
    for length in chunks:
        prefill(driver, [(run, start, start + length)])
        start += length
    assert _say(driver, run, 4) == expected_tokens(PROMPT, 4, VOCABULARY)


def test_rows_do_not_touch_each_other(sim: Open) -> None:
    driver = sim()
    runs = [Run(PROMPT[n:], n, [7 * n + 1 + b for b in range(7)]) for n in range(4)]
    prefill(driver, [(run, 0, len(run.prompt)) for run in runs])
    for _ in range(9):
        decode(driver, runs[1:])
        decode(driver, runs[:1])
    for run in runs:
        assert run.tokens == expected_tokens(run.prompt, 10, VOCABULARY)


def test_blocks_of_lanes_are_their_own(sim: Open) -> None:
    """Equal block ids in two lanes are different blocks."""
    driver = sim(lanes=2, rows=2)
    runs = [Run(PROMPT, 0, [5, 3, 17, 4, 29]), Run(PROMPT[1:], 3, [5, 3, 17, 4, 29])]
    prefill(driver, [(run, 0, len(run.prompt)) for run in runs])
    for _ in range(5):
        decode(driver, runs)
    for run in runs:
        assert run.tokens == expected_tokens(run.prompt, 6, VOCABULARY)


def _right(driver: AdapterDriver, run: Run, count: int = 6) -> bool:
    return _say(driver, run, count) == expected_tokens(run.prompt, count, VOCABULARY)


def test_a_swapped_block_is_noticed(sim: Open) -> None:
    driver = sim()
    run = Run(PROMPT, 0, [5, 3, 17, 4, 29])
    prefill(driver, [(run, 0, len(PROMPT))])
    run.blocks = [3, 5, 17, 4, 29]
    assert not _right(driver, run)


def test_a_lost_chunk_is_noticed(sim: Open) -> None:
    driver = sim()
    run = Run(PROMPT, 0, [5, 3, 17, 4, 29])
    prefill(driver, [(run, 0, 10)])
    prefill(driver, [(run, 12, len(PROMPT))])
    assert not _right(driver, run)


def test_an_overwritten_block_is_noticed(sim: Open) -> None:
    """Another request writes one token into the middle of a full block."""
    driver = sim()
    run = Run(PROMPT, 0, [5, 3, 17, 4, 29])
    prefill(driver, [(run, 0, len(PROMPT))])
    prefill(driver, [(Run([1, 2, 3], 1, [3]), 0, 3)])
    assert not _right(driver, run)


def test_a_hit_on_a_block_never_written_is_noticed(sim: Open) -> None:
    driver = sim(fail_steps=[1])
    first = Run(PROMPT, 0, [5, 3, 17, 4, 29])
    with pytest.raises(RuntimeError, match="step 1"):
        prefill(driver, [(first, 0, len(PROMPT))])
    second = Run(PROMPT, 1, [5, 3, 18, 19, 20])
    prefill(driver, [(second, 16, len(PROMPT))])
    assert not _right(driver, second)


def test_a_shared_prefix_is_right(sim: Open) -> None:
    driver = sim()
    first = Run(PROMPT, 0, [5, 3, 17, 4, 29])
    prefill(driver, [(first, 0, len(PROMPT))])
    second = Run([*PROMPT[:16], 9, 9, 9], 1, [5, 3, 18])
    prefill(driver, [(second, 16, 19)])
    assert _right(driver, second)
    assert _right(driver, first, 5)


def test_stale_slots_do_not_matter(sim: Open) -> None:
    """A block's former content beyond the position is never looked at."""
    driver = sim()
    prefill(driver, [(Run(PROMPT, 0, [5, 3, 17, 4, 29]), 0, len(PROMPT))])
    run = Run(PROMPT[:9], 1, [17, 5])
    prefill(driver, [(run, 0, 9)])
    assert _right(driver, run)


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 59), max_size=3),
    size=st.sampled_from([1, 4, 16]),
)
def test_the_cache_computes_the_pure_function(
    tokens: list[int], cuts: list[int], size: int
) -> None:
    cache = SimCache(1, 80, size)
    table = np.random.default_rng(0).permutation(79)[: -(-60 // size)] + 1
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    digest = 0
    for start, end in zip(edges, edges[1:], strict=False):
        digest = cache.extend(table, start, np.array(tokens[start:end]))
    assert [VOCABULARY.choose(digest)] == expected_tokens(tokens, 1, VOCABULARY)


ENDING = SimVocabulary(300, 32, 95, eos=259, mean_output_tokens=5)


@given(st.integers(0, 2**64 - 1))
def test_arrays_are_mixed_and_chosen_alike(value: int) -> None:
    values = np.array([value], dtype=np.uint64)
    assert int(mix_array(values)[0]) == mix(value)
    for vocabulary in (VOCABULARY, ENDING):
        assert int(choose_array(vocabulary, values)[0]) == vocabulary.choose(value)


def test_it_never_ends_by_itself_unless_told(sim: Open) -> None:
    assert 259 not in expected_tokens(PROMPT, 500, VOCABULARY)
    expected = expected_tokens(PROMPT, 40, ENDING)
    assert 3 <= expected.count(259) <= 16
    run = Run(PROMPT, 0, [5, 3, 17, 4, 29, 8, 1, 2, 6, 7])
    driver = sim(mean_output_tokens=5)
    prefill(driver, [(run, 0, len(PROMPT))])
    assert _say(driver, run, 40) == expected


def test_an_end_needs_an_id() -> None:
    mesh = SimMesh(profile=SimProfile(mean_output_tokens=5))
    config = LlamaConfig(vocab_size=300, eos_token_id=None)
    spec = LoadSpec(config, "sim", torch.float32, LIMIT, BLOCK, 4)
    with pytest.raises(StartupError, match="eos_token_id"):
        load_model(resolve_adapter("LlamaForCausalLM", "sim"), mesh, spec)


def test_output_ids_avoid_special_ones() -> None:
    config = LlamaConfig(
        vocab_size=1000, eos_token_id=[3, 2], bos_token_id=1, pad_token_id=990
    )
    assert SimVocabulary.of(config) == SimVocabulary(1000, 4, 986, eos=3)


def test_logits_leave_something_to_sample() -> None:
    digests = np.array([5, 2**63 + 17], dtype=np.uint64)
    logits = SimLogits(VOCABULARY).after(digests)
    probabilities = logits.softmax(-1)
    tokens = [VOCABULARY.choose(int(digest)) for digest in digests]
    assert logits.argmax(-1).tolist() == tokens
    assert probabilities.max(-1).values.tolist() == pytest.approx(
        [0.75, 0.75], abs=0.03
    )
    others = probabilities[0, 32:127]
    assert int((others > 1e-4).sum()) > 60
    assert float(probabilities[0, :32].sum() + probabilities[0, 127:].sum()) == 0.0
    assert not torch.equal(logits[0], logits[1])


def test_logits_are_the_callers_own(sim: Open) -> None:
    driver = sim()
    run = Run(PROMPT, 0, [5, 3, 17, 4, 29])
    prefill(driver, [(run, 0, len(PROMPT))])
    run.logits[0].fill_(float("nan"))
    assert _right(driver, run)
    assert page_table(driver, run.blocks).dtype == torch.int32

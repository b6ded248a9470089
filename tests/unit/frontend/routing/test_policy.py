"""The rule by which a device service is chosen, and what it remembers of prompts."""

from __future__ import annotations

import pytest

from frontend.routing.policy import Candidate, choose, load_margin
from frontend.routing.prefixes import (
    MAX_HASHED_BLOCKS,
    PrefixMemory,
    block_hashes,
)
from frontend.routing.router import Router
from tests.support.fake_device import model
from ttserve.v1 import model_pb2


@pytest.mark.parametrize(
    ("rows", "margin"), [(1, 1), (3, 1), (4, 1), (8, 2), (32, 8), (128, 32)]
)
def test_margin(rows: int, margin: int) -> None:
    assert load_margin(rows) == margin


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([Candidate("a", 5)], "a"),
        ([Candidate("a", 5), Candidate("b", 4)], "b"),
        # A shared prefix wins while the load is near the least ...
        ([Candidate("a", 7, shared_blocks=1), Candidate("b", 4)], "a"),
        ([Candidate("a", 8, shared_blocks=9), Candidate("b", 4)], "b"),
        # ... and the longer one of two.
        ([Candidate("a", 0, shared_blocks=2), Candidate("b", 3, shared_blocks=3)], "b"),
        ([Candidate("a", 1, shared_blocks=2), Candidate("b", 0, shared_blocks=2)], "b"),
        ([Candidate("a", 0, last_turn=2), Candidate("b", 0, last_turn=1)], "b"),
        ([Candidate("a", 0), Candidate("b", 0)], "a"),
    ],
)
def test_choices_with_a_margin_of_four(
    candidates: list[Candidate], chosen: str
) -> None:
    assert choose(candidates, margin=4).name == chosen


def test_equal_beginnings_have_equal_hashes() -> None:
    one = block_hashes([*range(100), 1, 2, 3], 32)
    other = block_hashes([*range(100), 4, 5, 6] * 2, 32)
    assert len(one) == 3
    assert other[:3] == one
    assert len(set(other)) == len(other) == 6


def test_a_block_stands_for_all_before_it() -> None:
    same_block = [7] * 32
    first = block_hashes([*([1] * 32), *same_block, 0], 32)
    second = block_hashes([*([2] * 32), *same_block, 0], 32)
    assert not set(first) & set(second)


def test_salted_prompts_share_nothing() -> None:
    prompt = [1] * 100
    assert not set(block_hashes(prompt, 32, "a")) & set(block_hashes(prompt, 32, "b"))


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (10**6, MAX_HASHED_BLOCKS)],
)
def test_only_full_blocks_before_the_last_token_count(tokens: int, blocks: int) -> None:
    assert len(block_hashes([5] * tokens, 32)) == blocks


def test_memory_is_bounded_and_forgets_ends_before_beginnings() -> None:
    memory = PrefixMemory(4)
    old, new = [b"1", b"2", b"3"], [b"4", b"5"]
    memory.add(old)
    memory.add(new)
    assert len(memory) == 4
    assert memory.shared_blocks(new) == 2
    assert memory.shared_blocks(old) == 2
    memory.add(old[:1])
    memory.add([b"6", b"7"])
    assert memory.shared_blocks(old) == 1
    assert memory.shared_blocks(new) == 1


def described(*, prefix_caching: bool = True) -> model_pb2.Model:
    cache = model_pb2.KvCacheInfo(prefix_caching=prefix_caching)
    return model(kv_cache=cache)


def test_a_session_stays_where_it_was() -> None:
    router = Router(described())
    loads = {"a": 0, "b": 0}
    prompt = [9] * 200
    first = router.route(loads, prompt)
    other = router.route(loads, [3] * 200)
    assert {first, other} == {"a", "b"}
    for _ in range(3):
        assert router.route(loads, [*prompt, *range(100)]) == first
    router.forget(first)
    assert router.route(loads, prompt) == first  # its turn is longest ago


def test_without_a_prefix_cache_nothing_is_remembered() -> None:
    router = Router(described(prefix_caching=False))
    turns = [router.route({"a": 0, "b": 0}, [9] * 200) for _ in range(4)]
    assert turns == ["a", "b", "a", "b"]

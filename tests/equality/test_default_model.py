"""The default model says, token for token, what transformers alone says.

fp32, greedy, 20 prompts of mixed lengths. Whatever the batch, the chunks, the
prefix cache or a preemption: the tokens of a prompt are those of `generate()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.reference import (
    NEW_TOKENS,
    default_answers,
    default_model,
    default_prompts,
)
from tests.support.rig import Rig, Stream

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return default_prompts()


@pytest.fixture(scope="module")
def reference() -> list[list[int]]:
    return default_answers()


@pytest.fixture(scope="module")
def make_rig() -> Iterator[Any]:
    def make(**options: Any) -> Rig:
        shape: dict[str, Any] = {
            "mesh": "cpu",
            "rows": 20,
            "block_size": BLOCK_SIZE,
            "max_model_len": 512,
            "max_num_batched_tokens": 2048,
        }
        return Rig(default_model(), **(shape | options))

    yield make


def submit_all(rig: Rig, prompts: list[list[int]]) -> list[Stream]:
    stop = rig.config.model_config.try_get_generation_config()["eos_token_id"]
    stops = stop if isinstance(stop, list) else [stop]
    return [rig.submit(p, NEW_TOKENS, stop_token_ids=stops) for p in prompts]


def tokens(streams: list[Stream]) -> list[list[int]]:
    return [stream.token_ids for stream in streams]


def test_one_at_a_time(
    make_rig: Any, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    with make_rig(rows=1) as rig:
        for prompt, answer in zip(prompts, reference, strict=True):
            [stream] = submit_all(rig, [prompt])
            rig.run()
            assert stream.token_ids == answer


def test_all_at_once_and_again_from_the_prefix_cache(
    make_rig: Any, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    with make_rig() as rig:
        cold = submit_all(rig, prompts)
        rig.run()
        assert tokens(cold) == reference
        warm = submit_all(rig, prompts)
        rig.run()
        assert tokens(warm) == reference
        for stream, prompt in zip(warm, prompts, strict=True):
            assert stream.prefill is not None
            # All full blocks but the one that holds the last token.
            full = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
            assert stream.prefill.cached_tokens == full
        rig.assert_nothing_is_held()


def test_in_chunks(
    make_rig: Any, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    with make_rig(max_num_batched_tokens=40, enable_prefix_caching=False) as rig:
        streams = submit_all(rig, prompts)
        rig.run()
        assert tokens(streams) == reference
        rows = [row for r in rig.records for lane in r.lanes for row in lane.rows]
        assert any(row.intermediate_chunk for row in rows)


def test_with_chunked_prefill_off(
    make_rig: Any, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    with make_rig(enable_chunked_prefill=False) as rig:
        streams = submit_all(rig, prompts[8:16])
        rig.run()
        assert tokens(streams) == reference[8:16]


def test_under_preemption(
    make_rig: Any, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    """33 blocks hold one sequence of 512 tokens; eight of up to 200 must fight."""
    with make_rig(num_blocks=33, rows=8, enable_prefix_caching=False) as rig:
        # Short prompts first: all are admitted, then grow into each other's room.
        chosen = sorted(range(20), key=lambda i: len(prompts[i]))
        streams = submit_all(rig, [prompts[i] for i in chosen])
        rig.run()
        assert tokens(streams) == [reference[i] for i in chosen]
        assert any(record.preempted for record in rig.records)
        rig.assert_nothing_is_held()

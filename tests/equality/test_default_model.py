"""The default model says, token for token, what transformers alone says.

fp32, greedy, 20 prompts of mixed lengths. Whatever the batch, the chunks, the
prefix cache or a preemption: the tokens of a prompt are those of `generate()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.rig import Rig, Stream
from ttserve.default_model import default_model_dir

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NEW_TOKENS = 12
BLOCK_SIZE = 16

STORY = (
    "Once upon a time there was a lighthouse keeper who wrote a letter every "
    "evening and never sent one. The letters were about the weather, about ships "
    "that had passed without a signal, and about the price of lamp oil. "
)
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "1, 2, 3, 4,",
    "def add(a, b):",
    "Dear Sir or Madam,",
    "The quick brown fox",
    "Die Hauptstadt von Deutschland ist",
    "SELECT name FROM",
    "A",
)


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return default_model_dir(print)


@pytest.fixture(scope="module")
def prompts(model_dir: Path) -> list[list[int]]:
    """From one token to a few hundred; the long ones share long prefixes."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    texts = [*QUESTIONS, *(STORY * (1 + i % 3) + QUESTIONS[i] for i in range(10))]
    return [tokenizer(text)["input_ids"] for text in texts]


@pytest.fixture(scope="module")
def reference(model_dir: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers' own `generate()` answers, one prompt at a time."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
        )
        answers.append(ids[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(scope="module")
def make_rig(model_dir: Path) -> Iterator[Any]:
    def make(**options: Any) -> Rig:
        shape: dict[str, Any] = {
            "mesh": "cpu",
            "rows": 20,
            "block_size": BLOCK_SIZE,
            "max_model_len": 512,
            "max_num_batched_tokens": 2048,
        }
        return Rig(model_dir, **(shape | options))

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

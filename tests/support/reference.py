"""Prompts, and what transformers' own `generate()` answers to them.

Computed once per process, however many test modules compare with it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ttserve.default_model import default_model_dir

NEW_TOKENS = 12

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


MIXED_PROMPTS = [
    [65],
    [66 + i % 7 for i in range(9)],
    [70 + i % 11 for i in range(33)],
    [80 + i % 5 for i in range(50)],
    [*[90 + i % 13 for i in range(48)], 65],
    [*[90 + i % 13 for i in range(48)], 66, 67],
]
"""For tiny models: shorter and longer than their blocks and their windows of 24;
the last two share a long prefix.
"""


def greedy(model: PreTrainedModel, prompt: list[int], new_tokens: int) -> list[int]:
    """What `generate()` adds to a prompt, its end-of-sequence token included."""
    generate: Any = model.generate
    ids = generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=new_tokens,
    )
    added: list[int] = ids[0, len(prompt) :].tolist()
    return added


@functools.cache
def default_model() -> Path:
    """The default model's directory, converted if it is not in the cache."""
    return default_model_dir(print)


@functools.cache
def default_prompts() -> list[list[int]]:
    """20, from one token to a few hundred; the long ones share long prefixes."""
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    texts = [*QUESTIONS, *(STORY * (1 + i % 3) + QUESTIONS[i] for i in range(10))]
    return [tokenizer(text)["input_ids"] for text in texts]


@functools.cache
def default_answers() -> list[list[int]]:
    """`NEW_TOKENS` greedy tokens in fp32 for each of `default_prompts`."""
    model = AutoModelForCausalLM.from_pretrained(default_model(), dtype=torch.float32)
    return [greedy(model, prompt, NEW_TOKENS) for prompt in default_prompts()]

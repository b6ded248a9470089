"""What the simulated model says: a pure function of the tokens before.

`expected_tokens` is the yardstick: it knows nothing of blocks, chunks or rows.
The adapter computes the same numbers from what it finds in the paged cache, so
a wrong page table, a lost chunk or an overwritten block gives other tokens.

Every position p has a hash that runs on from the one before,
    h(p) = A * h(p-1) + mix(token * B + p)              (mod 2**64)
and the next token is chosen by a digest over all of them,
    D(p) = sum over i <= p of (2i + 1) * mix(h(i))      (mod 2**64).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MASK = (1 << 64) - 1
MULTIPLIER = 0xD1342543DE82EF95
TOKEN_FACTOR = 0x9E3779B97F4A7C15
SEED = 0x2545F4914F6CDD1D
MIX_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
MIX_LAST_SHIFT = 31


def mix(value: int) -> int:
    """Spread a 64-bit number over 64 bits, one to one."""
    value &= MASK
    for shift, factor in MIX_STEPS:
        value = ((value ^ (value >> shift)) * factor) & MASK
    return value ^ (value >> MIX_LAST_SHIFT)


@dataclass(frozen=True, slots=True)
class SimVocabulary:
    """Which ids the simulated model chooses among.

    Ids [first, first + count) are ordinary output. With `mean_output_tokens`
    it ends a sequence with `eos` once in so many tokens, otherwise never.
    """

    size: int
    first: int
    count: int
    eos: int | None = None
    mean_output_tokens: int | None = None

    @classmethod
    def of(cls, hf_config: Any, mean_output_tokens: int | None = None) -> SimVocabulary:
        """Read a model's config.

        `sim_output_ids: [first, end]` in the config names the output ids;
        without it they are the longest run of ids that has no special one.
        """
        text = hf_config.get_text_config()
        size = int(text.vocab_size)
        eos_ids = _ids(text.eos_token_id)
        span = getattr(hf_config, "sim_output_ids", None)
        if span is None:
            special = eos_ids + _ids(text.bos_token_id) + _ids(text.pad_token_id)
            span = _longest_run(size, special)
        return cls(
            size=size,
            first=span[0],
            count=span[1] - span[0],
            eos=eos_ids[0] if eos_ids else None,
            mean_output_tokens=mean_output_tokens,
        )

    def choose(self, digest: int) -> int:
        """The token that follows a digest."""
        draw = mix(digest)
        if (
            self.eos is not None
            and self.mean_output_tokens is not None
            and (draw >> 32) % self.mean_output_tokens == 0
        ):
            return self.eos
        return self.first + (draw & 0xFFFFFFFF) % self.count


def expected_tokens(
    prompt_token_ids: Sequence[int], count: int, vocabulary: SimVocabulary
) -> list[int]:
    """The `count` greedy tokens after a prompt, as a right run must give them.

    An end-of-sequence token is followed by what comes after it, as in a run
    that ignores it.
    """
    tokens = list(prompt_token_ids)
    running, digest = SEED, 0
    for position in range(len(tokens) + count - 1):
        item = mix(tokens[position] * TOKEN_FACTOR + position)
        running = (MULTIPLIER * running + item) & MASK
        digest = (digest + (2 * position + 1) * mix(running)) & MASK
        if position + 1 == len(tokens):
            tokens.append(vocabulary.choose(digest))
    return tokens[len(prompt_token_ids) :]


def _ids(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _longest_run(size: int, special: list[int]) -> tuple[int, int]:
    edges = sorted({-1, size, *(token for token in special if 0 <= token < size)})
    runs = [(low + 1, high) for low, high in zip(edges, edges[1:], strict=False)]
    return max(runs, key=lambda run: run[1] - run[0])

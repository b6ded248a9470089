"""Rounds in which systems take turns, so that what changes around them hits all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.measure import PROMPT_IDS, Batch, Prompt, prompts
from bench.progress import say

Run = Callable[[Sequence[Prompt], int], Batch]

ROUNDS = 5
"""Rounds of a measurement, unless the command line or its cost says fewer."""

PROMPT_TOKENS = 64
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What every system gets in every round: `rows` requests at once."""

    rows: int
    max_tokens: int
    rounds: int
    prompt_tokens: int = PROMPT_TOKENS
    prompt_ids: tuple[int, int] = PROMPT_IDS

    def prompts(self, seed: int) -> list[Prompt]:
        """Prompts that no other seed gives: nothing hits a prefix cache."""
        return prompts(self.rows, self.prompt_tokens, seed, self.prompt_ids)


def interleaved(systems: Mapping[str, Run], load: Load) -> dict[str, list[Batch]]:
    """Every system once per round, in alternating order, after one that warms up."""
    batches: dict[str, list[Batch]] = {name: [] for name in systems}
    order = list(systems)
    for number, name in enumerate(order):
        systems[name](load.prompts(number), WARM_UP_TOKENS)
    for number in range(1, load.rounds + 1):
        for place, name in enumerate(order):
            seed = 1000 * number + place
            batches[name].append(systems[name](load.prompts(seed), load.max_tokens))
        order.reverse()
        rates = ", ".join(f"{n} {b[-1].decode_rate():.0f}" for n, b in batches.items())
        say(f"  {load.rows} at once, round {number}/{load.rounds}: {rates} tokens/s")
    return batches


def rates(batches: Sequence[Batch]) -> list[float]:
    """Tokens a second in every round."""
    return [batch.decode_rate() for batch in batches]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]

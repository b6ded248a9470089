"""Logits for tokens that are already chosen.

The chosen token leads clearly, so greedy decoding picks it; the other output
ids share the rest unevenly, so temperature, top-p and seeds have something to
do. Ids that the model would not say (special ones, and those outside its
output) are so unlikely that only a grammar or a bias brings them up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from device_service.models.sim_tokens import SimVocabulary

LEADER_PROBABILITY = 0.75
FLOOR = -1e4


class SimLogits:
    """Makes rows of logits; each call returns memory of its own."""

    def __init__(self, vocabulary: SimVocabulary) -> None:
        self._vocabulary = vocabulary
        generator = torch.Generator().manual_seed(vocabulary.count)
        ring = -6 * torch.rand(vocabulary.count, generator=generator)
        total = float(ring.exp().sum())
        odds = LEADER_PROBABILITY / (1 - LEADER_PROBABILITY)
        self._lead = max(1.0, math.log(total * odds))
        self._ring = torch.cat([ring, ring])

    def rows(self, tokens: Sequence[int], turns: Sequence[int]) -> torch.Tensor:
        """float32 [n, V]; `turns` are any numbers that vary the rest of a row."""
        vocabulary = self._vocabulary
        first, end = vocabulary.first, vocabulary.first + vocabulary.count
        logits = torch.empty(len(tokens), vocabulary.size)
        logits[:, :first] = FLOOR
        logits[:, end:] = FLOOR
        for row, (token, turn) in enumerate(zip(tokens, turns, strict=True)):
            offset = turn % vocabulary.count
            logits[row, first:end] = self._ring[offset : offset + vocabulary.count]
            logits[row, token] = self._lead
        return logits

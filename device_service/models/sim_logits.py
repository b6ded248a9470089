"""Logits of the simulated model: what follows each digest.

The chosen token leads clearly, so greedy decoding picks it; the other output
ids share the rest unevenly, so temperature, top-p and seeds have something to
do. Ids that the model would not say (special ones, and those outside its
output) are so unlikely that only a grammar or a bias brings them up.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from device_service.models.sim_cache import Hashes, mix_array
from device_service.models.sim_tokens import SimVocabulary

LEADER_PROBABILITY = 0.75
FLOOR = -1e4

_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


def choose_array(vocabulary: SimVocabulary, digests: Hashes) -> npt.NDArray[np.int64]:
    """`SimVocabulary.choose`, element by element."""
    draws = mix_array(digests)
    tokens = (draws & _LOW) % np.uint64(vocabulary.count)
    chosen = tokens.astype(np.int64) + vocabulary.first
    if vocabulary.eos is not None and vocabulary.mean_output_tokens is not None:
        ends = (draws >> _HIGH) % np.uint64(vocabulary.mean_output_tokens) == 0
        chosen[ends] = vocabulary.eos
    return chosen


class SimLogits:
    """Makes rows of logits; each call returns memory of its own."""

    def __init__(self, vocabulary: SimVocabulary) -> None:
        self._vocabulary = vocabulary
        generator = torch.Generator().manual_seed(vocabulary.count)
        others = -6 * torch.rand(vocabulary.count, generator=generator)
        odds = LEADER_PROBABILITY / (1 - LEADER_PROBABILITY)
        self._lead = max(1.0, math.log(float(others.exp().sum()) * odds))
        # Row t of this view is the others turned by t: no row looks like another.
        self._turned = torch.cat([others, others]).unfold(0, vocabulary.count, 1)

    def after(self, digests: Hashes) -> torch.Tensor:
        """float32 [n, V]: the logits of the token after each digest."""
        vocabulary = self._vocabulary
        first, end = vocabulary.first, vocabulary.first + vocabulary.count
        turns = (digests % np.uint64(vocabulary.count)).astype(np.int64)
        tokens = choose_array(vocabulary, digests)
        logits = torch.empty(len(digests), vocabulary.size)
        logits[:, :first] = FLOOR
        logits[:, end:] = FLOOR
        logits[:, first:end] = self._turned[torch.from_numpy(turns)]
        logits[torch.arange(len(digests)), torch.from_numpy(tokens)] = self._lead
        return logits

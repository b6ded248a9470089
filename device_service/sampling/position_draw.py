"""The seeded draw: noise that depends on seed, position and token, on nothing else.

A draw adds Gumbel noise to the (scaled, cut) logits and takes the largest sum,
which chooses each token with its softmax probability. The noise of a token is a
hash of (seed, position, token id), so a seeded request gives the same tokens in
any row, any batch and any order of steps, after a preemption, and whether its
candidates are the whole vocabulary or a short list of them. There is no
generator to advance. A device sampler that uses this module therefore agrees
with the host. Imports no vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

UInt32s = npt.NDArray[np.uint32]

_WORD = (1 << 64) - 1
_SLICE = 8192


def row_keys(seeds: Sequence[int], positions: Sequence[int]) -> UInt32s:
    """Two 32-bit keys per row, from a seed of up to 64 bits (signed or not)."""
    words = [
        _mix(_mix(seed & _WORD) + position)
        for seed, position in zip(seeds, positions, strict=True)
    ]
    return np.array([(word & 0xFFFFFFFF, word >> 32) for word in words], np.uint32)


def gumbel_noise(
    keys: UInt32s, token_ids: UInt32s, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Standard Gumbel noise, float64 [rows, columns].

    keys: [rows, 2]. token_ids: uint32 [rows, columns], or [1, columns] for all
    rows alike. In float64 sums of a logit and its noise do not tie, and the last
    digit of a logarithm, which may depend on a tensor's shape, decides nothing.
    """
    rows, columns = len(keys), token_ids.shape[1]
    noise = torch.empty(rows, columns, dtype=torch.float64) if out is None else out
    # A slice at a time: its intermediate values stay in the cache.
    step = max(1, _SLICE // rows)
    for begin in range(0, columns, step):
        bits = _hash(keys, token_ids[:, begin : begin + step]) >> np.uint32(1)
        part = noise[:, begin : begin + step]
        part.copy_(torch.from_numpy(bits.view(np.int32)))
        # (bits + 1/2) / 2**31 lies strictly between 0 and 1, exactly.
        part.add_(0.5).mul_(2.0**-31).log_().neg_().log_().neg_()
    return noise


def _hash(keys: UInt32s, token_ids: UInt32s) -> UInt32s:
    """32 mixed bits per (row, token): two multiply rounds, a key before each."""
    x = token_ids ^ keys[:, :1]
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= keys[:, 1:]
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def _mix(x: int) -> int:
    """Mix 64 bits so that neighbouring inputs give unrelated outputs."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)

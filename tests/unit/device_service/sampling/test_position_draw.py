"""The seeded draw: repeatable, independent of layout, and fairly distributed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from device_service.sampling.position_draw import gumbel_noise, row_keys

DRAWS = 120_000
PROBABILITIES = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005])


def draw(seeds: list[int], positions: list[int], token_ids: np.ndarray) -> torch.Tensor:
    noise = gumbel_noise(row_keys(seeds, positions), token_ids.astype(np.uint32))
    return (PROBABILITIES.log() + noise).argmax(dim=1)


def assert_fair(columns: torch.Tensor) -> None:
    """Chi-square within six standard deviations; total variation within 0.5 %."""
    counts = torch.bincount(columns, minlength=len(PROBABILITIES)).double()
    expected = PROBABILITIES.double() * len(columns)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(PROBABILITIES) - 1
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5
    variation = float((counts / len(columns) - PROBABILITIES).abs().sum()) / 2
    assert variation < 0.005


TOKENS = {
    "neighbouring ids": np.arange(8)[None, :],
    "spread ids": (np.arange(8)[None, :] * 16411) % 128_000,
}


@pytest.mark.parametrize(
    ("seed", "tokens"),
    [(0, "spread ids"), (-1234, "neighbouring ids"), (2**63 - 1, "spread ids")],
)
def test_positions_of_one_seed_are_fair(seed: int, tokens: str) -> None:
    assert_fair(draw([seed] * DRAWS, list(range(DRAWS)), TOKENS[tokens]))


@pytest.mark.parametrize("position", [0, 100_000])
def test_seeds_at_one_position_are_fair(position: int) -> None:
    seeds = list(range(-DRAWS // 2, DRAWS // 2))
    assert_fair(draw(seeds, [position] * DRAWS, TOKENS["neighbouring ids"]))


def test_choices_at_neighbouring_positions_are_independent() -> None:
    columns = draw([5] * DRAWS, list(range(DRAWS)), TOKENS["neighbouring ids"])
    pairs = torch.bincount(columns[:-1] * 8 + columns[1:], minlength=64).double()
    expected = torch.outer(PROBABILITIES, PROBABILITIES).double().flatten() * DRAWS
    assert float(((pairs - expected) ** 2 / expected).sum()) < 63 + 6 * 126**0.5


@pytest.mark.edge("42b")
@pytest.mark.feature(122)
def test_seeds_use_all_their_bits_and_their_sign() -> None:
    seeds = [0, 1, -1, 2**31, 2**32, -(2**32), 2**62, 2**63 - 1, -(2**63)]
    keys = row_keys(seeds, [9] * len(seeds))
    assert len(set(map(tuple, keys.tolist()))) == len(seeds)
    assert np.array_equal(row_keys([2**64 - 1], [3]), row_keys([-1], [3]))


def test_noise_belongs_to_the_token_wherever_it_stands() -> None:
    keys = row_keys([3, -8], [10, 11])
    whole = gumbel_noise(keys, np.arange(50_000, dtype=np.uint32)[None, :])
    some = np.random.default_rng(0).permutation(50_000)[:300].astype(np.uint32)
    listed = gumbel_noise(keys, np.stack([some, some[::-1]]))
    alone = gumbel_noise(keys[1:], np.arange(50_000, dtype=np.uint32)[None, :])
    places = torch.from_numpy(some.astype(np.int64))
    torch.testing.assert_close(listed[0], whole[0, places], rtol=1e-12, atol=0)
    torch.testing.assert_close(listed[1], whole[1, places.flip(0)], rtol=1e-12, atol=0)
    torch.testing.assert_close(alone[0], whole[1], rtol=1e-12, atol=0)


def test_noise_is_finite_and_has_the_moments_of_a_gumbel() -> None:
    positions = list(range(50))
    ids = np.arange(50_000, dtype=np.uint32)[None, :]
    noise = gumbel_noise(row_keys([1] * 50, positions), ids)
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - 0.5772157) < 0.005
    assert abs(float(noise.var()) - np.pi**2 / 6) < 0.02

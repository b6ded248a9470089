"""Rates and gaps of arrivals that are known."""

from __future__ import annotations

import pytest

from bench.measure import Batch, percentile, prompts, spread

EVEN = Batch.of(
    [
        [(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)],
        [(2.0, 1), (3.0, 1), (4.0, 1), (5.0, 1)],
    ]
)


def test_the_decode_rate_counts_while_all_requests_decode() -> None:
    # From 2.0, when the second starts, to 4.0, when the first ends.
    assert EVEN.decode_rate() == pytest.approx(4 / 2.0)


def test_the_whole_rate_counts_the_prompts_too() -> None:
    assert EVEN.whole_rate() == pytest.approx(8 / 5.0)


def test_requests_that_never_decode_together_have_no_rate() -> None:
    apart = Batch.of([[(1.0, 1), (2.0, 1)], [(3.0, 1), (4.0, 1)]])
    with pytest.raises(ValueError, match="all requests decoded"):
        apart.decode_rate()


def test_tokens_that_come_together_have_no_gap_between_them() -> None:
    merged = Batch.of([[(1.0, 1), (1.5, 3)]])
    assert merged.gaps_ms() == pytest.approx([500.0, 0.0, 0.0])
    assert merged.tokens == 4


def test_the_time_to_the_first_token_is_the_median_request() -> None:
    assert EVEN.first_token_ms() == pytest.approx(1500.0)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 2), (75, 3), (99, 4)])
def test_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    assert percentile([4, 2, 1, 3], percent) == value


def test_spread_is_a_share_of_the_median() -> None:
    assert spread([9.0, 10.0, 12.0]) == pytest.approx(0.3)
    assert spread([10.0]) is None


def test_prompts_repeat_with_their_seed_only() -> None:
    assert prompts(2, 5, seed=1) == prompts(2, 5, seed=1)
    assert prompts(2, 5, seed=1) != prompts(2, 5, seed=2)
    assert [len(prompt) for prompt in prompts(2, 5, seed=1)] == [5, 5]

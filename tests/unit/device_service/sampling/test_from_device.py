"""What the device sampled, in the words of the host's sampler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from device_service.mesh.interface import DeviceLogprobs
from device_service.records import Sampled, TokenLogprobs
from device_service.sampling.from_device import RANK_UNKNOWN, sampled_on_device
from ttserve.errors import Reason

VOCABULARY = 100


def take(
    tokens: Sequence[int],
    logprobs: DeviceLogprobs | None = None,
    top_logprobs: Sequence[int | None] | None = None,
) -> Sampled:
    asked = top_logprobs or [None] * len(tokens)
    return sampled_on_device(
        np.array(tokens, dtype=np.int32), logprobs, asked, VOCABULARY
    )


def best(*rows: list[tuple[int, float]]) -> DeviceLogprobs:
    """Pairs of token and log probability, best first, per row."""
    return DeviceLogprobs(
        np.array([[value for _, value in row] for row in rows], dtype=np.float32),
        np.array([[token for token, _ in row] for row in rows], dtype=np.int32),
    )


def test_tokens_alone() -> None:
    sampled = take([5, 0, 99])
    assert sampled.token_ids == [5, 0, 99]
    assert all(type(token) is int for token in sampled.token_ids)
    assert sampled.logprobs == [None, None, None]
    assert sampled.errors == {}


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**31 - 1])
def test_what_is_no_token_fails_its_row_alone(token: int) -> None:
    sampled = take([5, token, 6], best(*[[(5, -0.5)]] * 3), [None, 0, None])
    assert list(sampled.errors) == [1]
    assert sampled.errors[1].reason is Reason.STEP_FAILED


@pytest.mark.feature(125, 126)
def test_rows_get_what_they_asked_for() -> None:
    logprobs = best(
        [(7, -0.25), (8, -0.5), (9, -4.0)],
        [(7, -0.25), (8, -0.5), (9, -4.0)],
        [(1, -1.0), (2, -1.0), (3, -2.0)],
    )
    sampled = take([8, 7, 1], logprobs, [2, None, 0])
    assert sampled.logprobs == [
        TokenLogprobs(-0.5, 2, [7, 8], [-0.25, -0.5]),
        None,
        # Two tokens are at least as probable, and the host counts so too.
        TokenLogprobs(-1.0, 2, [], []),
    ]


@pytest.mark.feature(126)
def test_the_chosen_tokens_value_alone() -> None:
    values = DeviceLogprobs(np.array([[-0.5], [-1.5]], dtype=np.float32), None)
    sampled = take([8, 7], values, [None, 0])
    assert sampled.logprobs == [None, TokenLogprobs(-1.5, RANK_UNKNOWN, [], [])]


@pytest.mark.edge(41)
def test_a_token_from_outside_what_it_is_said_to_be_drawn_from() -> None:
    """Its value cannot be known, and a made-up one must not be served."""
    logprobs = best([(7, -0.25), (8, -0.5)], [(7, -0.25), (8, -0.5)])
    sampled = take([9, 8], logprobs, [2, 2])
    assert list(sampled.errors) == [0]
    assert "token 9 from outside" in sampled.errors[0].message
    assert sampled.logprobs[1] == TokenLogprobs(-0.5, 2, [7, 8], [-0.25, -0.5])

"""The cadence table of contract 2.3 and its sharp edges."""

from __future__ import annotations

import pytest

from device_service.scheduling.interleave import InterleaveConfig, InterleavePolicy


def cadence(policy: InterleavePolicy, steps: int) -> str:
    """What runs when prefill is endless and some row can always decode."""
    taken = ""
    for _ in range(steps):
        if policy.decode_is_due():
            policy.record_decode(prefill_pending=True)
            taken += "D"
        else:
            policy.record_prefill()
            taken += "P"
    return taken


@pytest.mark.feature(64)
@pytest.mark.parametrize(
    ("prefill_steps", "decode_steps", "expected"),
    [
        (1, 1, "PDPD"),
        (2, 1, "PPDPPD"),
        (4, 1, "PPPPD"),
        (1, 2, "PDDPDD"),
        (2, 3, "PPDDDPP"),
    ],
)
def test_cadence(prefill_steps: int, decode_steps: int, expected: str) -> None:
    policy = InterleavePolicy(InterleaveConfig(True, prefill_steps, decode_steps))
    assert cadence(policy, len(expected)) == expected


@pytest.mark.feature(65)
def test_disabled_gives_unbroken_prefill_runs() -> None:
    policy = InterleavePolicy(InterleaveConfig(enabled=False))
    assert cadence(policy, 8) == "P" * 8


@pytest.mark.edge(12)
def test_a_new_prompt_keeps_its_first_step_after_ordinary_decodes() -> None:
    """Sharp edge 12: counters must not survive ordinary decoding."""
    policy = InterleavePolicy(InterleaveConfig(prefill_steps=1))
    policy.record_prefill()
    policy.record_decode(prefill_pending=False)
    assert not policy.decode_is_due()


@pytest.mark.edge(11)
@pytest.mark.feature(67)
def test_a_decode_step_without_tokens_spends_the_allowance() -> None:
    """Sharp edge 11: the policy counts steps, not tokens."""
    policy = InterleavePolicy(InterleaveConfig(prefill_steps=1, decode_steps=1))
    policy.record_prefill()
    assert policy.decode_is_due()
    policy.record_decode(prefill_pending=True)
    assert not policy.decode_is_due()

"""Rolling restarts fail no request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.rolling import HOW

# What a machine with two busy cores can serve beside starting processes.
REQUESTS_PER_SECOND = 10.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", HOW)
async def test_no_request_fails(how: str, tmp_path: Path) -> None:
    outcome = await HOW[how](tmp_path, rate=REQUESTS_PER_SECOND)
    assert not outcome.failures, outcome
    assert outcome.requests > REQUESTS_PER_SECOND * outcome.restart_seconds / 2

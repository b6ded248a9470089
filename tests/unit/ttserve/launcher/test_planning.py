"""How the launcher learns which device services there are to be."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.ttserve.launcher.stand_ins import (
    DEADLINE,
    STUBBORN,
    python,
)
from ttserve.errors import StartupError
from ttserve.launcher.child import ChildSpec
from ttserve.launcher.config import LauncherConfig, parse
from ttserve.launcher.output import Console
from ttserve.launcher.planning import PlanFailedError, plan
from ttserve.service_plan import PlannedService

TWO = parse(["-dp", "2"])
WRITES = """
import sys
print("looking")
open(sys.argv[1], "w").write(
    '{"services": [{"flags": ["--threads", "3"], "environment": {"A": "1"}},'
    ' {"flags": [], "environment": {}}]}'
)
"""
REFUSES = "import sys; print('error: no'); sys.exit(2)"


def says(script: str) -> Callable[[LauncherConfig, Path], ChildSpec]:
    """A planner that runs the script, with the file as its argument."""

    def spec(config: LauncherConfig, file: Path) -> ChildSpec:
        return ChildSpec("plan", tuple(python(script, str(file))), signal.SIGTERM)

    return spec


def console() -> tuple[Console, io.BytesIO]:
    shown = io.BytesIO()
    return Console(shown, ["plan"], colour=False), shown


async def test_one_replica_needs_no_plan() -> None:
    assert await plan(parse([]), console()[0], says(REFUSES)) == (PlannedService(),)


async def test_a_plan_is_read_and_what_was_said_is_shown() -> None:
    speaking, shown = console()
    assert await plan(TWO, speaking, says(WRITES), DEADLINE) == (
        PlannedService(("--threads", "3"), {"A": "1"}),
        PlannedService(),
    )
    assert "plan    | looking\n" in shown.getvalue().decode()


async def test_a_refusal_ends_with_its_line_and_its_code() -> None:
    speaking, shown = console()
    with pytest.raises(PlanFailedError) as failed:
        await plan(TWO, speaking, says(REFUSES), DEADLINE)
    assert failed.value.exit_code == 2
    lines = shown.getvalue().decode().splitlines()
    assert lines[0].endswith("| error: no")
    assert lines[1].endswith("| cannot plan the device services; giving up")


async def test_a_planner_without_a_plan_is_an_error() -> None:
    with pytest.raises(StartupError, match="there is no plan"):
        await plan(TWO, console()[0], says("pass"), DEADLINE)


def pid_in(shown: io.BytesIO) -> int | None:
    text = shown.getvalue().decode()
    return int(text.rpartition("pid ")[2]) if "pid " in text else None


async def test_one_that_takes_too_long_is_killed() -> None:
    speaking, shown = console()
    with pytest.raises(PlanFailedError) as failed:
        await plan(TWO, speaking, says(STUBBORN), 1.0)
    assert failed.value.exit_code == 1
    assert "not planned after 1 s" in shown.getvalue().decode()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_in_order(signum: signal.Signals) -> None:
    speaking, shown = console()
    planning = asyncio.create_task(plan(TWO, speaking, says(STUBBORN), DEADLINE))
    async with asyncio.timeout(DEADLINE):
        while (pid := pid_in(shown)) is None:  # noqa: ASYNC110 - its child says it
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signum)
    with pytest.raises(PlanFailedError) as failed:
        await planning
    assert failed.value.exit_code == 0
    assert "there is nothing to restart" in shown.getvalue().decode()
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240 - reaped, too

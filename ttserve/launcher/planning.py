"""Which device services there are to be: the device service knows, and is asked.

It takes its imports and, on hardware, opening the mesh. So it is asked only when
there may be several.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from ttserve.launcher.child import Child, ChildSpec
from ttserve.launcher.commands import plan_spec
from ttserve.launcher.config import LauncherConfig
from ttserve.launcher.output import Console
from ttserve.launcher.supervisor import RESTART_SIGNAL, STOP_SIGNALS, as_shell_code
from ttserve.service_plan import PlannedService, read_plan

# The default model may have to be made ready first.
PLAN_SECONDS = 600.0


class PlanFailedError(Exception):
    """There is no plan. Why was shown; `exit_code` is for the launcher to pass on."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


async def plan(
    config: LauncherConfig,
    console: Console,
    make_spec: Callable[[LauncherConfig, Path], ChildSpec] = plan_spec,
    seconds: float = PLAN_SECONDS,
) -> tuple[PlannedService, ...]:
    """The services that `--data-parallel-size` takes, by rank.

    Raises PlanFailedError, with exit code 0 when a signal ended the planning, and
    StartupError. No process is left then.
    """
    if config.data_parallel_size == 1:
        return (PlannedService(),)
    with tempfile.TemporaryDirectory(prefix="tt-serve-") as folder:
        file = Path(folder, "plan.json")
        child = Child(make_spec(config, file), console.show)
        code = await _run(child, console, seconds)
        if code != 0:
            console.say("cannot plan the device services; giving up")
            raise PlanFailedError(as_shell_code(code))
        return read_plan(file)


async def _run(child: Child, console: Console, seconds: float) -> int:
    """Let it end, or end it when a signal comes or when it takes too long."""
    running = asyncio.create_task(child.run())
    loop = asyncio.get_running_loop()
    for signum in STOP_SIGNALS:
        loop.add_signal_handler(signum, running.cancel)
    loop.add_signal_handler(RESTART_SIGNAL, console.say, "there is nothing to restart")
    try:
        return await asyncio.wait_for(running, seconds)
    except asyncio.CancelledError:
        raise PlanFailedError(0) from None
    except asyncio.TimeoutError:
        console.say(f"the device services are not planned after {seconds:g} s")
        return 1
    finally:
        for signum in (*STOP_SIGNALS, RESTART_SIGNAL):
            loop.remove_signal_handler(signum)

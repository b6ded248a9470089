"""A launcher of its own for one test: `run_supervisor.py JSON`, with real signals.

The JSON object gives each child's argv (`devices`, `frontends`), the `timing`,
and a file whose appearance means that a request can be served (`ready`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from ttserve.launcher.child import Child, ChildSpec
from ttserve.launcher.output import Console
from ttserve.launcher.rolling import RollingRestart
from ttserve.launcher.supervisor import Supervisor, Timing


def main(setup: dict[str, Any]) -> int:
    devices = setup["devices"]
    names = [f"device{i}" for i in range(len(devices))]
    specs = [
        ChildSpec(name, tuple(argv), signal.SIGTERM, again=("again",))
        for name, argv in (
            *zip(names if len(names) > 1 else ["device"], devices, strict=True),
            *((f"frontend{i}", argv) for i, argv in enumerate(setup["frontends"])),
        )
    ]
    console = Console(sys.stdout.buffer, [spec.name for spec in specs], colour=False)
    children = [Child(spec, console.show) for spec in specs]

    async def ready() -> None:
        # Another process makes the file, so nothing here can be awaited.
        while not Path(setup["ready"]).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        console.say("ready")

    timing = Timing(**setup["timing"])

    async def ready_again(name: str) -> None:
        console.say(f"waiting for {name}")

    frontends = children[len(devices) :]
    rolling = RollingRestart(frontends, ready_again, console, timing.grace)
    supervisor = Supervisor(
        children[: len(devices)], frontends, ready, console, timing, rolling
    )
    return asyncio.run(supervisor.run())


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

"""How many device services a launch takes, and what each is given.

`tt-device-service --plan FILE` writes it, `tt-serve` reads it. A file, because
what a process prints is mixed with what its libraries print.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ttserve.errors import StartupError


@dataclass(frozen=True, slots=True)
class PlannedService:
    """What one device service gets beside the flags that all of them have.

    `flags` come last on its command line, so that they win; `environment` is
    added to its launcher's own.
    """

    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def write_plan(file: Path, services: Sequence[PlannedService]) -> None:
    """Write the plan as one line of JSON. Raises StartupError."""
    plan = {"services": [dataclasses.asdict(service) for service in services]}
    try:
        file.write_text(json.dumps(plan) + "\n")
    except OSError as error:
        raise StartupError(f"--plan {file}: {error.strerror}") from error


def read_plan(file: Path) -> tuple[PlannedService, ...]:
    """Read what `write_plan` wrote. Raises StartupError when nobody did."""
    try:
        plan = json.loads(file.read_text())
    except OSError as error:
        raise StartupError(f"there is no plan: {error.strerror}") from error
    return tuple(
        PlannedService(tuple(service["flags"]), service["environment"])
        for service in plan["services"]
    )

"""`tt-device-service --check`: whether this machine's mesh opens and closes."""

from __future__ import annotations

import sys
import time

from device_service.device_thread import DeviceThread
from device_service.mesh.interface import Mesh


async def check_mesh(mesh: Mesh) -> None:
    """Open, say what is there, close. Loads nothing.

    Runs to its end when a signal comes, so that the devices are closed. Raises
    StartupError, one line, when the mesh does not open.
    """
    lines = await DeviceThread().call(_check, mesh)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _check(mesh: Mesh) -> list[str]:
    began = time.monotonic()
    try:
        mesh.open()
        opened = time.monotonic()
        lines = list(mesh.found())
    finally:
        closing = time.monotonic()
        mesh.close()
    closed = time.monotonic()
    times = f"opened in {opened - began:.1f} s, closed in {closed - closing:.1f} s"
    return [*lines, times]

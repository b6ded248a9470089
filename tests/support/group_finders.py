"""What a process that looks for groups of devices may do; named, not handed over."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from device_service.mesh.device_groups import DeviceGroup, split
from tests.support.ttnn_host import ClusterType, RecordingTtnn, create_submeshes
from ttserve.errors import StartupError

PID_FILE = "GROUP_FINDER_PID_FILE"
HEAVY = ("torch", "ttnn", "vllm")


def on_t3k(count: int, mesh_device: str | None) -> list[DeviceGroup]:
    """Finds those of eight devices, and says so where the answer does not come."""
    print("not an answer")
    imported = [name for name in HEAVY if name in sys.modules]
    if imported or os.getpid() == os.getppid():
        raise StartupError(f"imported: {imported}")
    return split(
        RecordingTtnn(8, ClusterType.T3K), create_submeshes, count, mesh_device
    )


def crashing(count: int, mesh_device: str | None) -> list[DeviceGroup]:
    """Ends in the middle, as when a driver does."""
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def failing(count: int, mesh_device: str | None) -> list[DeviceGroup]:
    """Meets what nobody thought of."""
    raise KeyError("a hole")


def hanging(count: int, mesh_device: str | None) -> list[DeviceGroup]:
    """Never comes back, and cannot be asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(os.environ[PID_FILE]).write_text(str(os.getpid()))
    threading.Event().wait()
    return []

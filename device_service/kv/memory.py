"""How much host memory is free: the machine's, or the container's if smaller."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def free_memory_bytes() -> int:
    """Bytes that this process could take without swapping."""
    available = int(psutil.virtual_memory().available)
    room = cgroup_room_bytes(_CGROUPS, _OWN_CGROUP)
    return available if room is None else min(available, room)


def cgroup_room_bytes(root: Path, own: Path) -> int | None:
    """Bytes below the tightest limit of the process's cgroups; None: no limit.

    Reads cgroup v2. A container sees its own group as the root, a service
    manager's group lies below it; every group up to the root counts. Page
    cache that the kernel would give back is not counted as used.
    """
    try:
        line = own.read_text().strip().splitlines()[-1]
    except (OSError, IndexError):
        return None
    group = root / line.rpartition(":")[2].lstrip("/")
    rooms = [
        room
        for path in (group, *group.parents)
        if path.is_relative_to(root) and (room := _room(path)) is not None
    ]
    return min(rooms, default=None)


def _room(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        statistics = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    reclaimable = 0
    for line in statistics.splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            reclaimable = int(value)
    return max(0, int(limit) - used + reclaimable)

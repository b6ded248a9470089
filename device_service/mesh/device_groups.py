"""Groups of devices for data parallelism: one for each device service (contract 2.17).

Only tt-metal knows which devices make a good group, and only with all of them
open. So a process of its own opens the whole mesh, asks, and closes it again:
whoever asks never holds a device. What was found is handed to the device
services as TT_VISIBLE_DEVICES and MESH_DEVICE; none of them looks again, for one
that sees its own group only would number the devices anew.

Imports neither torch nor vLLM; `ttnn` and tt-metal in that process alone.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from device_service.mesh.ttnn_mesh import reason
from device_service.mesh.ttnn_settings import grid_on
from ttserve.errors import StartupError

_GALAXY_NAMES = frozenset({"TG", "BH-Galaxy"})
_GALAXY_GRID = (4, 8)
# Neighbours in this order have the links that tt-metal's collectives expect.
_WORMHOLE_GALAXY_ORDER = (0, 2, 3, 1)
_SUBMESHES = "models.tt_transformers.tt.generator"


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices of one device service, as `ttnn` numbers them when it sees all.

    Their order is that of the group's grid, row by row.
    """

    device_ids: tuple[int, ...]
    grid: tuple[int, int]

    def environment(self) -> dict[str, str]:
        """What binds a process to the group. Must be set before `ttnn` is imported:
        tt-metal reads it once.
        """
        rows, columns = self.grid
        return {
            "TT_VISIBLE_DEVICES": ",".join(map(str, self.device_ids)),
            "MESH_DEVICE": f"({rows},{columns})",
        }


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds: for the answer, and for each way of ending the process."""

    answer: float = 60.0
    join: float = 5.0


Finder = Callable[[int, str | None], Sequence[DeviceGroup]]


def find_on_this_machine(count: int, mesh_device: str | None) -> list[DeviceGroup]:
    """Open all devices and split them. For a process that has nothing else to do.

    Raises StartupError.
    """
    try:
        import ttnn
    except ImportError as error:
        raise StartupError(_missing("the ttnn package", error)) from error
    try:
        create_submeshes = importlib.import_module(_SUBMESHES).create_submeshes
    except (ImportError, AttributeError) as error:
        raise StartupError(_missing(f"tt-metal's {_SUBMESHES}", error)) from error
    return split(ttnn, create_submeshes, count, mesh_device)


def split(
    ttnn: Any,
    create_submeshes: Callable[[Any, int], Sequence[Any]],
    count: int,
    mesh_device: str | None,
) -> list[DeviceGroup]:
    """The `count` groups of the mesh that MESH_DEVICE names, one per rank.

    Everything that was opened is closed again. Raises StartupError.
    """
    named = "({},{})".format(*_GALAXY_GRID)
    asked = named if (mesh_device or "").strip() in _GALAXY_NAMES else mesh_device
    grid = grid_on(ttnn.get_num_devices(), asked, None)
    try:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(*grid))
        try:
            submeshes = list(create_submeshes(mesh, count))
            groups = [
                DeviceGroup(tuple(it.get_device_ids()), (it.shape[0], it.shape[1]))
                for it in submeshes
            ]
        finally:
            for submesh in mesh.get_submeshes():
                ttnn.close_mesh_device(submesh)
            ttnn.close_mesh_device(mesh)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise StartupError(
            f"{grid[0]} x {grid[1]} devices do not split into {count} groups: "
            f"{reason(error)}"
        ) from error
    _check(groups, count, set(ttnn.get_pcie_device_ids()))
    if grid == _GALAXY_GRID and count == 4 and "wormhole" in ttnn.get_arch_name():
        return [groups[rank] for rank in _WORMHOLE_GALAXY_ORDER]
    return groups


def _check(groups: Sequence[DeviceGroup], count: int, reachable: set[int]) -> None:
    """Raise StartupError unless each rank has devices that it can open alone."""
    if len(groups) != count:
        raise StartupError(
            f"tt-metal made {len(groups)} groups of devices for {count} device "
            "services; choose another --data-parallel-size or MESH_DEVICE"
        )
    ids = [it for group in groups for it in group.device_ids]
    if not all(group.device_ids for group in groups) or len(ids) != len(set(ids)):
        raise StartupError(
            "tt-metal made groups that are empty or share devices "
            f"({_spoken(groups)}); choose another --data-parallel-size or MESH_DEVICE"
        )
    if not all(reachable.intersection(group.device_ids) for group in groups):
        raise StartupError(
            "a group has no device that the host reaches by itself "
            f"({_spoken(groups)}, reached: {sorted(reachable)}); choose a smaller "
            "--data-parallel-size"
        )


def discover(
    count: int,
    mesh_device: str | None,
    limits: TimeLimits | None = None,
    find: Finder = find_on_this_machine,
) -> tuple[DeviceGroup, ...]:
    """Let a process of its own find the groups, one per rank.

    Blocks until it is gone. Raises StartupError when it finds none, crashes or
    hangs.
    """
    limits = limits or TimeLimits()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    helper = context.Process(
        target=_answer, args=(sender, find, count, mesh_device), daemon=True
    )
    helper.start()
    sender.close()
    try:
        with receiver:
            answer = _receive(receiver, limits.answer)
    finally:
        _end(helper, limits.join)
    if answer is None:
        raise StartupError(
            "the process that looks for groups of devices ended without an answer, "
            f"exit code {helper.exitcode}"
        )
    if isinstance(answer, str):
        raise StartupError(answer)
    return tuple(answer)


def _receive(
    receiver: Connection, seconds: float
) -> Sequence[DeviceGroup] | str | None:
    """Groups, or what is wrong; None when the process ended without a word."""
    if not receiver.poll(seconds):
        raise StartupError(
            f"looking for groups of devices took longer than {seconds:g} s; see "
            "whether the mesh opens (tt-device-service --check), or reset the boards "
            "(tt-smi -r)"
        )
    try:
        answer: Sequence[DeviceGroup] | str = receiver.recv()
    except EOFError:
        return None
    return answer


def _end(helper: BaseProcess, seconds: float) -> None:
    """Wait for the process, then ask it to end, then make it."""
    helper.join(seconds)
    for end in (helper.terminate, helper.kill):
        if not helper.is_alive():
            return
        end()
        helper.join(seconds)


def _answer(
    sender: Connection, find: Finder, count: int, mesh_device: str | None
) -> None:
    """The whole life of the process that looks."""
    # What libraries print must not be taken for its parent's answer.
    os.dup2(2, 1)
    try:
        answer: Sequence[DeviceGroup] | str = find(count, mesh_device)
    except StartupError as error:
        answer = str(error)
    except Exception as error:  # noqa: BLE001 - the parent says it and ends
        answer = f"looking for groups of devices failed: {reason(error)}"
    sender.send(answer)


def _missing(what: str, error: Exception) -> str:
    return (
        f"{what} does not import ({' '.join(str(error).split())}); start in the Python "
        "environment of tt-metal, with its checkout on PYTHONPATH"
    )


def _spoken(groups: Sequence[DeviceGroup]) -> str:
    return "; ".join(",".join(map(str, group.device_ids)) for group in groups)

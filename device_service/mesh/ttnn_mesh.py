"""The `ttnn` mesh: Tenstorrent devices, opened and closed in the right order.

Imports neither torch nor vLLM, and not `ttnn` either: whoever makes a mesh hands
the library in (`device_service.mesh.factory`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from device_service.mesh.host_mesh import HostMesh
from device_service.mesh.host_queue import Task
from device_service.mesh.ttnn_settings import (
    fabric_arguments,
    grid_on,
    open_arguments,
)
from device_service.options import TTOptions
from ttserve.errors import StartupError

logger = logging.getLogger(__name__)


class TtnnMesh(HostMesh):
    """A `ttnn.MeshDevice` behind `interface.Mesh`.

    The devices have their own command queues, which the adapter fills. The
    worker thread of the base class only waits: an event that is watched becomes
    a task that ends when the devices have come to it. They come to events in the
    order of submission, so one thread sees each of them on time.
    """

    def __init__(
        self,
        ttnn: Any,
        tt: TTOptions,
        mesh_device: str | None = None,
        visible_devices: str | None = None,
    ) -> None:
        """Count devices and choose the grid; opens nothing.

        Raises StartupError, one line, for a grid or a name that cannot be had.
        """
        self._ttnn = ttnn
        self._tt = tt
        grid = grid_on(ttnn.get_num_devices(), mesh_device, visible_devices)
        super().__init__("ttnn", grid)
        # Wrong names are said now, not when the weights have been found.
        self._fabric = fabric_arguments(ttnn, grid[0] * grid[1], None, tt)
        self._device: Any = None
        self._opened = ExitStack()

    @property
    def device(self) -> Any:
        """The open `ttnn.MeshDevice`; adapters work on it."""
        if self._device is None:
            raise RuntimeError("the mesh is not open")
        return self._device

    def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
        """Set the fabric, then open the devices.

        Raises StartupError when that fails; what was set up is undone then.
        """
        if self._queue is not None or self._device is not None:
            raise RuntimeError("the mesh is open")
        rows, columns = self.grid
        self._fabric = fabric_arguments(
            self._ttnn, rows * columns, model_fabric, self._tt
        )
        try:
            self._open()
        except (RuntimeError, TypeError, ValueError) as error:
            self._opened.close()
            raise StartupError(
                f"ttnn cannot open {rows} x {columns} devices: {reason(error)}"
            ) from error
        super().open()

    def _open(self) -> None:
        ttnn = self._ttnn
        # Even this may be refused: not every product has both dispatch axes.
        arguments = open_arguments(ttnn, self._tt)
        logger.info(
            "opening %d x %d devices, fabric %s, %s",
            *self.grid,
            _spoken(self._fabric) or "none",
            _spoken(arguments) or "sizes of ttnn's own",
        )
        if self._fabric:
            disabled = ttnn.FabricConfig.DISABLED
            self._on_close("fabric", partial(ttnn.set_fabric_config, disabled))
            ttnn.set_fabric_config(**self._fabric)
        device = ttnn.open_mesh_device(ttnn.MeshShape(*self.grid), **arguments)
        self._on_close("mesh", partial(ttnn.close_mesh_device, device))
        self._on_close("submeshes", partial(self._close_submeshes, device))
        # A library that was not built for profiling does nothing here.
        self._on_close("profiler", partial(ttnn.ReadDeviceProfiler, device))
        self._device = device

    def close(self) -> None:
        """Let running work end, then close submeshes, devices and fabric.

        Each once, also when the one before failed: a device that stays open can
        keep the next process from opening it. Failures are logged.
        """
        super().close()
        self._device = None
        self._opened.close()

    def found(self) -> tuple[str, ...]:
        """What is open, in words, a line each."""
        ttnn, device = self._ttnn, self.device
        rows, columns = self.grid
        return (
            f"cluster {_name(ttnn.cluster.get_cluster_type())}, "
            f"{ttnn.get_arch_name()}, {ttnn.get_num_devices()} devices",
            f"open {rows} x {columns}: {', '.join(map(str, device.get_device_ids()))}",
            f"fabric {_spoken(self._fabric) or 'none, there is one device'}",
        )

    def watch(self, event: Any) -> Task[None]:
        """Wait for a `ttnn.MeshEvent` from now on, behind those before it."""
        return self.submit(partial(self._ttnn.event_synchronize, event))

    def _on_close(self, what: str, undo: Callable[[], None]) -> None:
        self._opened.callback(_attempt, what, undo)

    def _close_submeshes(self, device: Any) -> None:
        for submesh in device.get_submeshes():
            _attempt("submesh", partial(self._ttnn.close_mesh_device, submesh))


def reason(error: Exception) -> str:
    """The one line of ttnn's message that says what is wrong.

    It comes between the place in its source and a trace of the stack.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "info:" in lines[:-1]:
        return lines[lines.index("info:") + 1]
    return lines[0] if lines else type(error).__name__


def _attempt(what: str, undo: Callable[[], None]) -> None:
    try:
        undo()
    except Exception as error:  # noqa: BLE001 - what is left must be closed too
        logger.error("closing the %s failed: %s", what, reason(error))


def _spoken(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_name(value)}" for key, value in arguments.items())


def _name(value: Any) -> str:
    return str(getattr(value, "name", value))

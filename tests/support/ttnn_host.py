"""Stand-ins for the `ttnn` package on a host that has none.

`HostTtnn` is strict: it knows the names that need no device, and whatever would
touch one raises `TouchesDevice`. `RecordingTtnn` has devices that only take
notes, so that the order of calls can be looked at.
"""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any


class TouchesDevice(AssertionError):
    """Something asked for a device where there is none."""


class FabricConfig(enum.Enum):
    DISABLED = 0
    FABRIC_1D = 1
    FABRIC_1D_RING = 2
    FABRIC_2D = 4
    FABRIC_2D_TORUS_XY = 5
    CUSTOM = 8


class FabricReliabilityMode(enum.Enum):
    STRICT_INIT = 0
    RELAXED_INIT = 1
    DYNAMIC_RECONFIG = 2


class DispatchCoreAxis(enum.Enum):
    ROW = 0
    COL = 1


class ClusterType(enum.Enum):
    N150 = 1
    N300 = 2
    T3K = 3
    GALAXY = 4
    P150 = 7
    BLACKHOLE_GALAXY = 16


@dataclass(frozen=True)
class DispatchCoreConfig:
    axis: DispatchCoreAxis | None = None


class MeshShape(tuple[int, int]):
    def __new__(cls, rows: int, columns: int) -> MeshShape:
        return super().__new__(cls, (rows, columns))


class _Cluster:
    ClusterType = ClusterType

    def get_cluster_type(self) -> enum.Enum:
        raise TouchesDevice("ttnn.cluster.get_cluster_type")


class HostTtnn(types.ModuleType):
    """Names that need no device; the rest raises."""

    FabricConfig = FabricConfig
    FabricReliabilityMode = FabricReliabilityMode
    DispatchCoreAxis = DispatchCoreAxis
    DispatchCoreConfig = DispatchCoreConfig
    MeshShape = MeshShape

    def __init__(self) -> None:
        super().__init__("ttnn")
        self.__spec__ = ModuleSpec("ttnn", None)
        self.cluster = _Cluster()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TouchesDevice(f"ttnn.{name}")


@dataclass(eq=False)
class Board:
    """A mesh or a submesh that takes notes."""

    name: str
    shape: tuple[int, int]
    submeshes: list[Board]
    first_id: int = 0

    def get_submeshes(self) -> list[Board]:
        return self.submeshes

    def get_device_ids(self) -> list[int]:
        devices = self.shape[0] * self.shape[1]
        return list(range(self.first_id, self.first_id + devices))


def create_submeshes(mesh: Board, count: int) -> list[Board]:
    """Stands for tt-metal's function: rows of neighbours."""
    devices = mesh.shape[0] * mesh.shape[1]
    assert devices % count == 0, f"{devices} devices for {count} groups"
    size = devices // count
    mesh.submeshes = [
        Board(f"group {i}", MeshShape(1, size), [], i * size) for i in range(count)
    ]
    return mesh.submeshes


class RecordingTtnn(HostTtnn):
    """`devices` devices of one cluster; `calls` has what was done to them.

    A call whose name is in `failing` is noted, then raises a message of the
    form that ttnn's own have.
    """

    def __init__(self, devices: int, cluster_type: ClusterType) -> None:
        super().__init__()
        self.devices = devices
        self.devices_per_board = 1
        self.arch_name = "wormhole_b0"
        self.calls: list[tuple[Any, ...]] = []
        self.failing: set[str] = set()
        self.board: Board | None = None
        self.cluster.get_cluster_type = lambda: cluster_type  # type: ignore[method-assign]

    def get_num_devices(self) -> int:
        return self.devices

    def get_arch_name(self) -> str:
        return self.arch_name

    def get_pcie_device_ids(self) -> list[int]:
        return list(range(0, self.devices, self.devices_per_board))

    def set_fabric_config(self, config: FabricConfig, **more: Any) -> None:
        self._note("fabric", config, more)

    def open_mesh_device(self, shape: MeshShape, **sizes: Any) -> Board:
        self._note("open", shape, sizes)
        self.board = Board("mesh", shape, [])
        return self.board

    def close_mesh_device(self, board: Board) -> None:
        self._note("close", board.name)

    def ReadDeviceProfiler(self, board: Board) -> None:
        self._note("profiler", board.name)

    def event_synchronize(self, event: Any) -> None:
        event.wait()

    def _note(self, call: str, *arguments: Any) -> None:
        self.calls.append((call, *arguments))
        if call in self.failing or f"{call} {arguments[0]}" in self.failing:
            raise RuntimeError(
                f"TT_FATAL @ /project/x.cpp:1: ok\ninfo:\n{call} is broken\n"
                "backtrace:\n"
            )

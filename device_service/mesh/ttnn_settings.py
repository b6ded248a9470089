"""What the `ttnn` mesh is opened with: grid, fabric and memory (contract 2.18).

Decisions only: nothing here opens anything. `ttnn` is always the library itself,
or a stand-in for it in tests; only names that need no device are asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from device_service.mesh.grid import grid_of
from device_service.options import TTOptions
from ttserve.errors import StartupError

DEFAULT_TRACE_REGION_BYTES = 50_000_000


def grid_on(
    available: int, mesh_device: str | None, visible_devices: str | None
) -> tuple[int, int]:
    """The (rows, columns) to open.

    available: devices that ttnn finds. mesh_device, visible_devices: values of
    MESH_DEVICE and TT_VISIBLE_DEVICES. A visible board may hold two devices, so
    a grid of all devices that ttnn finds stands beside a shorter list; any other
    grid than one of the listed devices becomes a row of them. Raises
    StartupError for a grid that is not known or larger than what there is.
    """
    listed = len([name for name in (visible_devices or "").split(",") if name.strip()])
    grid = (1, listed or available) if mesh_device is None else grid_of(mesh_device)
    if listed and _devices(grid) not in (listed, available):
        grid = (1, listed)
    needed = _devices(grid)
    if needed > available or not needed:
        asked = f"MESH_DEVICE={mesh_device}" if mesh_device else "the mesh"
        visible = f" with TT_VISIBLE_DEVICES={visible_devices}" if listed else ""
        raise StartupError(
            f"{asked} needs {max(needed, 1)} devices ({grid[0]} x {grid[1]}), but ttnn "
            f"finds {available}{visible}; choose a smaller MESH_DEVICE or free devices"
        )
    return grid


def fabric_arguments(
    ttnn: Any, devices: int, model: Mapping[str, Any] | None, tt: TTOptions
) -> dict[str, Any]:
    """Keywords of `ttnn.set_fabric_config`; none for one device.

    model: what the model class declares, handed on as it is, over the default
    of the hardware and under the operator's options. Raises StartupError for
    an option that names no member of ttnn's enumeration.
    """
    operator: dict[str, Any] = {}
    if tt.fabric_config is not None:
        operator["config"] = _member(
            ttnn.FabricConfig, "fabric_config", tt.fabric_config
        )
    if tt.fabric_reliability_mode is not None:
        operator["reliability_mode"] = _member(
            ttnn.FabricReliabilityMode,
            "fabric_reliability_mode",
            tt.fabric_reliability_mode,
        )
    if devices == 1:
        return {}
    hardware = {
        "config": default_fabric(ttnn, ttnn.cluster.get_cluster_type()),
        "reliability_mode": ttnn.FabricReliabilityMode.STRICT_INIT,
    }
    return {**hardware, **(model or {}), **operator}


def default_fabric(ttnn: Any, cluster_type: Any) -> Any:
    """The fabric of several devices of one cluster.

    A Galaxy of Wormholes is a ring. That of Blackholes needs a torus, because
    nothing else has a way round for collectives along its columns.
    """
    kinds, fabrics = ttnn.cluster.ClusterType, ttnn.FabricConfig
    if cluster_type == kinds.BLACKHOLE_GALAXY:
        return fabrics.FABRIC_2D_TORUS_XY
    if cluster_type == kinds.GALAXY:
        return fabrics.FABRIC_1D_RING
    return fabrics.FABRIC_1D


def open_arguments(ttnn: Any, tt: TTOptions) -> dict[str, Any]:
    """Keywords of `ttnn.open_mesh_device` beside the grid: only what is given,
    and a region for traces where any are captured. Sizes are bytes.
    """
    arguments: dict[str, Any] = {}
    if tt.trace_mode != "none":
        given = tt.trace_region_size
        arguments["trace_region_size"] = (
            DEFAULT_TRACE_REGION_BYTES if given is None else given
        )
    if tt.worker_l1_size is not None:
        arguments["worker_l1_size"] = tt.worker_l1_size
    if tt.l1_small_size is not None:
        arguments["l1_small_size"] = tt.l1_small_size
    if tt.dispatch_core_axis is not None:
        axis = ttnn.DispatchCoreAxis.__members__[tt.dispatch_core_axis.upper()]
        arguments["dispatch_core_config"] = ttnn.DispatchCoreConfig(axis=axis)
    return arguments


def _devices(grid: tuple[int, int]) -> int:
    return grid[0] * grid[1]


def _member(enumeration: Any, option: str, name: str) -> Any:
    members = enumeration.__members__
    if name not in members:
        raise StartupError(
            f"tt option {option}: {name!r} is not one of {', '.join(members)}"
        )
    return members[name]

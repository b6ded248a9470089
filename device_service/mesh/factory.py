"""Makes the mesh that the configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from device_service.mesh.grid import grid_of
from device_service.mesh.interface import Mesh
from device_service.options import TTOptions
from ttserve.errors import StartupError


def make_mesh(kind: str, options: Mapping[str, Any]) -> Mesh:
    """A closed mesh of `kind` ("cpu", "sim" or "ttnn").

    Options: `mesh_device`, the value of MESH_DEVICE or None; `visible_devices`,
    that of TT_VISIBLE_DEVICES, and `tt`, the `TTOptions`, for kind "ttnn"; `sim`,
    the mapping under `tt.sim` of --additional-config, only for kind "sim".
    Raises StartupError for an unknown kind or a bad option. Each mesh is
    imported only when it is asked for.
    """
    if kind not in ("cpu", "sim", "ttnn"):
        raise StartupError(f"mesh {kind!r} is not known; use cpu, sim or ttnn")
    sim_options = options.get("sim")
    if kind != "sim" and sim_options is not None:
        raise StartupError("tt.sim is only for --mesh sim")
    if kind == "ttnn":
        return _hardware(options)
    grid = grid_of(options.get("mesh_device"))
    if kind == "cpu":
        from device_service.mesh.cpu import CpuMesh

        return CpuMesh(grid)
    from device_service.mesh.sim import SimMesh, SimProfile

    return SimMesh(grid, SimProfile.parse(sim_options or {}))


def _hardware(options: Mapping[str, Any]) -> Mesh:
    from device_service.mesh.ttnn_mesh import TtnnMesh

    try:
        import ttnn
    except ImportError as error:
        raise StartupError(
            "--mesh ttnn: the ttnn package does not import "
            f"({' '.join(str(error).split())}); start in the Python environment of "
            "tt-metal, or use --mesh cpu"
        ) from error
    return TtnnMesh(
        ttnn,
        options.get("tt") or TTOptions(),
        options.get("mesh_device"),
        options.get("visible_devices"),
    )

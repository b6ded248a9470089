"""Makes the mesh that the configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from device_service.mesh.grid import grid_of
from device_service.mesh.interface import Mesh
from ttserve.errors import StartupError


def make_mesh(kind: str, options: Mapping[str, Any]) -> Mesh:
    """A closed mesh of `kind` ("cpu", "sim" or "ttnn").

    Options: `mesh_device`, the value of MESH_DEVICE or None (N150); `sim`, the
    mapping under `tt.sim` of --additional-config, only for kind "sim".
    Raises StartupError for an unknown kind or a bad option. Each mesh is
    imported only when it is asked for.
    """
    if kind == "ttnn":
        raise StartupError("mesh ttnn is not built yet; use --mesh cpu or --mesh sim")
    if kind not in ("cpu", "sim"):
        raise StartupError(f"mesh {kind!r} is not known; use cpu, sim or ttnn")
    sim_options = options.get("sim")
    if kind != "sim" and sim_options is not None:
        raise StartupError("tt.sim is only for --mesh sim")
    grid = grid_of(options.get("mesh_device"))
    if kind == "cpu":
        from device_service.mesh.cpu import CpuMesh

        return CpuMesh(grid)
    from device_service.mesh.sim import SimMesh, SimProfile

    return SimMesh(grid, SimProfile.parse(sim_options or {}))

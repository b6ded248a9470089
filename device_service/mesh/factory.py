"""Makes the mesh that the configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from device_service.mesh.interface import Mesh


def make_mesh(kind: str, options: Mapping[str, Any]) -> Mesh:
    """A closed mesh of `kind` ("cpu", "sim" or "ttnn").

    Options: `mesh_device`, the value of MESH_DEVICE or None (N150); `sim`, the
    mapping under `tt.sim` of --additional-config, only for kind "sim".
    Raises StartupError for an unknown kind or a bad option.
    """
    raise NotImplementedError

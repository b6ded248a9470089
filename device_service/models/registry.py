"""Finds the adapter class of an architecture.

Frontends and vLLM know the upstream architecture names; the TT-prefixed names
of the model contract are made here and never leave the device service.
"""

from __future__ import annotations

from typing import Any

from ttserve.errors import StartupError

TT_PREFIX = "TT"


def resolve_adapter(architecture: str, mesh_kind: str) -> type[Any]:
    """The adapter class that serves `architecture` on a mesh of `mesh_kind`.

    On `cpu` one generic adapter serves every architecture, on `sim` a
    simulated one. Does not open the mesh or load weights. Raises StartupError.
    """
    name = architecture.removeprefix(TT_PREFIX)
    if mesh_kind == "cpu":
        from device_service.models.refusals import refuse_architecture
        from device_service.models.transformers_adapter import TransformersAdapter

        refuse_architecture(name)
        return TransformersAdapter
    if mesh_kind == "sim":
        from device_service.models.sim_adapter import SimAdapter

        return SimAdapter
    raise StartupError(
        f"no adapter serves {TT_PREFIX}{name} on mesh {mesh_kind}: that mesh is "
        "not built yet"
    )

"""Finds the adapter class of an architecture."""

from __future__ import annotations

from typing import Any


def resolve_adapter(architecture: str, mesh_kind: str) -> type[Any]:
    """The adapter class that serves `architecture` on a mesh of `mesh_kind`.

    Does not open the mesh or load weights. Raises StartupError.
    """
    raise NotImplementedError

"""Grids by product name: what MESH_DEVICE may say (contract 2.18)."""

from __future__ import annotations

import re

from ttserve.errors import StartupError

DEFAULT_MESH_DEVICE = "N150"

_GRIDS: dict[str, tuple[int, int]] = {
    "N150": (1, 1),
    "P100": (1, 1),
    "P150": (1, 1),
    "P150x2": (1, 2),
    "N300": (1, 2),
    "P300": (1, 2),
    "N150x4": (1, 4),
    "P150x4": (1, 4),
    "P300x2": (1, 4),
    "T3K": (1, 8),
    "P150x8": (1, 8),
    "TG": (8, 4),
    "BH-Galaxy": (8, 4),
}
_LITERAL = re.compile(r"\(\s*([1-9]\d*)\s*,\s*([1-9]\d*)\s*\)")


def grid_of(mesh_device: str | None) -> tuple[int, int]:
    """The (rows, columns) of a product name or a literal such as "(1,8)".

    None is one N150. Raises StartupError for anything else.
    """
    name = DEFAULT_MESH_DEVICE if mesh_device is None else mesh_device.strip()
    if name in _GRIDS:
        return _GRIDS[name]
    if literal := _LITERAL.fullmatch(name):
        return int(literal[1]), int(literal[2])
    known = ", ".join(_GRIDS)
    raise StartupError(
        f"MESH_DEVICE={mesh_device!r} is not known; use one of {known} or "
        'a literal such as "(1,8)"'
    )

"""Trees of packages like tt-metal's `models`, made of classes by dotted path."""

from __future__ import annotations

from pathlib import Path


def write_class(directory: Path, path: str, body: str = "    pass") -> None:
    """Add the class `module.path:Name` to a tree; a module may get several."""
    module, _, name = path.partition(":")
    file = directory.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as source:
        source.write(f"class {name}:\n{body}\n")

"""Adapters that somebody put into a directory: `EXTRA_MODELS_DIR` (contract 2.19).

    DIRECTORY/NAME/vllm_metadata.json     {"arch": "...", "main_class": "module:Class"}
    DIRECTORY/NAME/module.py              the adapter, and what it needs

A bundle that cannot be read costs a warning, not the start: it may belong to a
model that is not served today.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

METADATA_FILE = "vllm_metadata.json"


@dataclass(frozen=True, slots=True)
class Bundle:
    """One folder: an architecture, with or without TT, and who serves it."""

    folder: Path
    architecture: str
    path: str


@dataclass(frozen=True, slots=True)
class Bundles:
    """What a directory holds, by name of folder, and why the rest was skipped."""

    found: tuple[Bundle, ...] = ()
    warnings: tuple[str, ...] = ()


def read_bundles(directory: str | None) -> Bundles:
    """Read the metadata of each folder; imports nothing. None holds nothing."""
    if directory is None:
        return Bundles()
    if not Path(directory).is_dir():
        return Bundles(
            warnings=(f"EXTRA_MODELS_DIR={directory} is not a directory: ignored",)
        )
    found, warnings = [], []
    for folder in sorted(Path(directory).resolve().iterdir()):
        if not (folder / METADATA_FILE).is_file():
            continue
        try:
            found.append(_read(folder))
        except (OSError, ValueError) as error:
            warnings.append(f"{folder / METADATA_FILE}: {error}; bundle skipped")
    return Bundles(tuple(found), tuple(warnings))


def is_class_path(path: str) -> bool:
    """Whether this has the form `module.path:ClassName`."""
    module, colon, name = path.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and name.isidentifier()


def _read(folder: Path) -> Bundle:
    """Raises OSError, or ValueError that says what is wrong."""
    metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
    if not isinstance(metadata, dict):
        raise ValueError("not a JSON object")
    architecture, path = metadata.get("arch"), metadata.get("main_class")
    if not isinstance(architecture, str) or not architecture.isidentifier():
        raise ValueError(f'"arch" must name an architecture, not {architecture!r}')
    if not isinstance(path, str) or not is_class_path(path):
        raise ValueError(f'"main_class" must be "module:Class", not {path!r}')
    return Bundle(folder, architecture, path)

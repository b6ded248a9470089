"""The directory of recordings, which has to be there before one is needed."""

from __future__ import annotations

import tempfile
from pathlib import Path


def make_directory(directory: Path) -> None:
    """Make it if it is missing; only its owner can look into it.

    Raises OSError if nothing can be written there.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=directory):
        pass

"""Lines that say what a long benchmark is doing: on stderr, the table is on stdout."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print one line at once."""
    sys.stderr.write(f"  {line}\n")
    sys.stderr.flush()

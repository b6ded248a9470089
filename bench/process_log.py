"""Where the output of a process goes while nobody needs it."""

from __future__ import annotations

import tempfile

LONGEST = 300


class ProcessLog:
    """A file without a name, open until `close`."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115

    def close(self) -> None:
        """Forget it."""
        self.file.close()

    def last_words(self) -> str:
        """The last line with something in it: why a process ended, as a rule."""
        self.file.seek(0)
        lines = [line.strip() for line in self.file if line.strip()]
        return lines[-1][:LONGEST] if lines else "without a word"

"""What the children print, line by line, each line with the name of its speaker."""

from __future__ import annotations

import codecs
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import BinaryIO

LONGEST_LINE = 64 * 1024
PROGRESS_EVERY_SECONDS = 1.0

_COLOURS = (36, 32, 33, 35, 34)
_SPEAKER_OF_LAUNCHER = "tt-serve"


class LineAssembler:
    """Bytes of one pipe in, whole lines out.

    A pipe delivers whatever fits: half a line, half a character. Nothing is
    shown before its line is complete, so that two speakers never share one.
    A progress bar redraws its line with carriage returns: of those, the newest
    is shown about once a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._clock = clock
        self._unfinished = ""
        self._next_progress = clock()

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that `chunk` completes."""
        *finished, self._unfinished = (
            self._unfinished + self._decoder.decode(chunk)
        ).split("\n")
        lines = [_as_on_a_terminal(line) for line in finished]
        lines += self._progress()
        if len(self._unfinished) > LONGEST_LINE:
            lines.append(self._unfinished)
            self._unfinished = ""
        return lines

    def rest(self) -> list[str]:
        """What is left when the pipe has ended."""
        last = _as_on_a_terminal(self._unfinished + self._decoder.decode(b"", True))
        self._unfinished = ""
        return [last] if last else []

    def _progress(self) -> list[str]:
        redrawn, _, newest = self._unfinished.rpartition("\r")
        # "\r" at the very end may be the first half of "\r\n".
        if not redrawn or not newest:
            return []
        self._unfinished = newest
        shown = _as_on_a_terminal(redrawn)
        if not shown or self._clock() < self._next_progress:
            return []
        self._next_progress = self._clock() + PROGRESS_EVERY_SECONDS
        return [shown]


def _as_on_a_terminal(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


class Console:
    """The launcher's standard output, shared by all speakers.

    Used from one thread. A reader that goes away (`tt-serve | head`) is taken
    like a terminal that closes: the launcher is sent SIGHUP, and the rest of
    the output is dropped.

    `as_json` is for children that log JSON: what else they print is made such an
    object too, so that every line is one.
    """

    def __init__(
        self,
        stream: BinaryIO,
        speakers: Sequence[str],
        *,
        colour: bool,
        as_json: bool = False,
    ) -> None:
        names = (_SPEAKER_OF_LAUNCHER, *speakers)
        width = max(len(name) for name in names)
        self._prefixes = {
            name: _prefix(name.ljust(width), own_colour if colour else None)
            for name, own_colour in zip(names, itertools.cycle(_COLOURS), strict=False)
        }
        self._stream = stream
        self._as_json = as_json

    def show(self, speaker: str, lines: Sequence[str]) -> None:
        if self._as_json:
            shown = [json_line(speaker, line) for line in lines if line.strip()]
        else:
            prefix = self._prefixes[speaker]
            shown = [f"{prefix} {line}".rstrip() for line in lines]
        text = "".join(f"{line}\n" for line in shown)
        try:
            self._stream.write(text.encode("utf-8", errors="replace"))
            self._stream.flush()
        except BrokenPipeError:
            # Or what is still buffered would fail again when Python exits.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            signal.raise_signal(signal.SIGHUP)

    def say(self, line: str) -> None:
        """A line of the launcher's own."""
        self.show(_SPEAKER_OF_LAUNCHER, [line])


def json_line(speaker: str, line: str) -> str:
    """A line of a child as one JSON object that says which child it was."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        time = datetime.now(timezone.utc).isoformat()
        found = {"time": time, "level": "INFO", "logger": speaker, "message": line}
    return json.dumps({**found, "process": speaker}, ensure_ascii=False)


def _prefix(name: str, colour: int | None) -> str:
    return f"{name}|" if colour is None else f"\033[{colour}m{name}|\033[0m"

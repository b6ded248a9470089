"""Single keys from the terminal, without waiting for a line."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import sys
import termios
import tty
from collections.abc import Iterator


class Key(enum.Enum):
    """The keys that mean something; the values are what terminals send."""

    QUIT = b"q"
    PAUSE = b"p"
    LEFT = b"\x1b[D"
    RIGHT = b"\x1b[C"


_ALSO = {b"\x1bOD": Key.LEFT, b"\x1bOC": Key.RIGHT}
_MOST_BYTES = 64


@contextlib.contextmanager
def keyboard() -> Iterator[asyncio.Queue[Key]]:
    """Keys as they are pressed; the terminal is as it was afterwards."""
    terminal = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    pressed: asyncio.Queue[Key] = asyncio.Queue()

    def read() -> None:
        data = os.read(terminal, _MOST_BYTES)
        if not data:  # the terminal is gone
            pressed.put_nowait(Key.QUIT)
        for key in keys_in(data):
            pressed.put_nowait(key)

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def keys_in(data: bytes) -> Iterator[Key]:
    """The keys in what the terminal sent; what means nothing is skipped."""
    known = {key.value: key for key in Key} | _ALSO
    while data:
        found = next((code for code in known if data.startswith(code)), None)
        if found is not None:
            yield known[found]
        data = data[len(found or b"1") :]

"""A frontend that tells which tasks its event loop holds.

    python -m tests.chaos.observed SOCKET [options of tt-frontend]

Whoever connects to the Unix socket gets a line for each. Listing them looks at
every object of the process, so ask when nothing is measured.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading


def unfinished_tasks() -> list[str]:
    """What the tasks of all event loops run that are not over."""
    # The collector knows all of them; asyncio's own sets differ between versions.
    # By type: to be asked for their __class__ makes some objects do things.
    return [
        getattr(each.get_coro(), "__qualname__", "?")
        for each in gc.get_objects()
        if issubclass(type(each), asyncio.Task) and not each.done()
    ]


def _tell(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall("\n".join(unfinished_tasks()).encode())


def main() -> None:
    """Run the frontend; never returns."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    threading.Thread(target=_tell, args=(listener,), daemon=True).start()
    from frontend.__main__ import main as frontend

    frontend(sys.argv[2:])


if __name__ == "__main__":
    main()

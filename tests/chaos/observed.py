"""A frontend that tells how many tasks its event loop holds.

    python -m tests.chaos.observed SOCKET [options of tt-frontend]

Whoever connects to the Unix socket gets the number as a line. Counting looks at
every object of the process, so ask when nothing is measured.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading


def unfinished_tasks() -> int:
    """Tasks of all event loops that are not over."""
    # The collector knows all of them; asyncio's own sets differ between versions.
    return sum(
        isinstance(each, asyncio.Task) and not each.done() for each in gc.get_objects()
    )


def _tell(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"%d\n" % unfinished_tasks())


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

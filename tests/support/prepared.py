"""Services of tests start as forks of a process that has imported what they import.

Importing vLLM costs a service ten seconds of a processor; a fork serves after one.
There is one prepared process per command and pytest process, started when first
needed; tests/support/prepared_main.py is what it runs. It ends with its owner, and
what it started ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
COMMANDS = (("-m", "device_service"), ("-m", "frontend"))
SWITCH = "TTSERVE_TESTS_FORK"

# A test that comes first must not decide what is imported for those after it.
_BEFORE_TESTS = dict(os.environ)


class Process(Protocol):
    """What tests use of a `subprocess.Popen`."""

    returncode: int | None

    @property
    def pid(self) -> int:
        """Of the process, which may have ended."""

    def poll(self) -> int | None:
        """Its status, if it has ended; a signal's number is negative."""

    def wait(self, timeout: float | None = None) -> int:
        """Its status at its end; subprocess.TimeoutExpired if that is not in time."""

    def send_signal(self, sig: int) -> None:
        """Nothing happens when it has ended."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""


def start(
    words: Sequence[str], *, stdout: int, stderr: int, fork: bool = True
) -> Process:
    """What `python WORDS` does, with these files; it hears nothing.

    A command of COMMANDS is forked, on Linux, unless the test says otherwise or
    TTSERVE_TESTS_FORK is not 1: tests/conftest.py sets that, so what measures outside
    of pytest has real processes.
    """
    forks = fork and sys.platform == "linux" and os.environ.get(SWITCH) == "1"
    if forks and tuple(words[:2]) in COMMANDS:
        return _prepared(words[1]).fork(words[2:], stdout, stderr)
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )


class Forked:
    """A fork, seen from here; thread-safe, as a `Popen` is.

    The prepared process tells the pid, with a descriptor of the process (no other can
    come to have that, as it could the pid), and later the status.
    """

    def __init__(self, told: socket.socket) -> None:
        self.returncode: int | None = None
        self._told = told
        self._told.setblocking(False)
        self._pid = 0
        self._pidfd = -1
        self._hearing = threading.Lock()
        weakref.finalize(self, told.close)

    @property
    def pid(self) -> int:
        while not self._pid and self.returncode is None:
            # The first one waits for the imports; another thread may hear of its pid.
            self._hear(0.1)
        return self._pid

    def poll(self) -> int | None:
        while self.returncode is None and self._hear(0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.pid and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self._pid}", timeout or 0)
        while self.returncode is None:
            self._hear(None)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.pid and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                signal.pidfd_send_signal(self._pidfd, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self, timeout: float | None) -> bool:
        """Take in what is told, if that is within `timeout`."""
        select.select([self._told], [], [], timeout)
        with self._hearing:
            try:
                said, fds, _, _ = socket.recv_fds(self._told, 64, 1)
            except BlockingIOError:
                return False
            if fds:
                os.set_inheritable(fds[0], False)
                self._pidfd, self._pid = fds[0], int(said)
                weakref.finalize(self, os.close, self._pidfd)
            elif self.returncode is None:
                # When the prepared process is killed nothing is said.
                self.returncode = int(said) if said else -signal.SIGKILL
        return True


class Prepared:
    """A process that has imported what a command imports, and forks."""

    def __init__(self, module: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        main = ("-m", "tests.support.prepared_main")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *main, module, str(theirs.fileno())],
                cwd=ROOT,
                env=_BEFORE_TESTS,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def fork(self, options: Sequence[str], stdout: int, stderr: int) -> Forked:
        """Start one; returns at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = json.dumps([str(Path.cwd()), dict(os.environ), *options]).encode()
        with theirs:
            files = [stdout, stderr, theirs.fileno()]
            socket.send_fds(self._control, [asked], files)
        return Forked(ours)

    def close(self) -> None:
        """End it, and what it started."""
        self._control.close()
        self.process.kill()  # it may still import
        self.process.wait()


@functools.cache
def _prepared(module: str) -> Prepared:
    made = Prepared(module)
    atexit.register(made.close)
    return made

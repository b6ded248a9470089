"""One subprocess of the launcher, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ttserve.launcher import tether
from ttserve.launcher.output import LineAssembler

CHUNK = 64 * 1024
# How long to wait for the last output of a process that has ended: a helper it
# left behind may hold the pipe open.
LAST_WORDS_SECONDS = 0.5
CANNOT_START = 126


@dataclass(frozen=True)
class ChildSpec:
    """What to run. `argv[0]` is a path, not a name to be searched for."""

    name: str
    argv: tuple[str, ...]
    # Sent by the kernel if the launcher ends without having stopped the child.
    orphan_signal: signal.Signals
    inherited_fds: tuple[int, ...] = ()
    # Added to `argv` in every start but the first.
    again: tuple[str, ...] = ()
    # All of its environment; None is the launcher's own.
    environment: Mapping[str, str] | None = None


class Child:
    """Runs a spec, again and again if asked; at most one process at a time.

    The process leads a session of its own: Ctrl-C in the terminal reaches the
    launcher alone, which then stops its children in order, and what a child
    starts can be ended with it.
    """

    def __init__(self, spec: ChildSpec, show: Callable[[str, list[str]], None]) -> None:
        self._spec = spec
        self._show = show
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False
        self._starts = 0

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def is_running(self) -> bool:
        """Whether there is a process whose end `run` has yet to return."""
        return self._process is not None

    async def run(self) -> int:
        """Start the process and return its exit code, or minus the signal that
        killed it. All it printed has been shown by then.
        """
        read_end, write_end = os.pipe()
        try:
            process = await self._spawn(write_end)
        except OSError as error:
            os.close(read_end)
            self._show(self.name, [f"cannot start: {error.strerror}"])
            return CANNOT_START
        finally:
            os.close(write_end)
        self._process = process
        if self._ending:
            process.terminate()
        output = asyncio.create_task(self._show_output(read_end))
        try:
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                self.kill()
                await process.wait()  # or it might outlive the event loop
                raise
            finally:
                self.kill()
            await asyncio.wait([output], timeout=LAST_WORDS_SECONDS)
            return code
        finally:
            self._process = None
            output.cancel()

    def terminate(self) -> None:
        """Ask the process to stop; it looks after its own helpers. Final: one
        that is only just being started stops too.
        """
        self._ending = True
        self.interrupt()

    def interrupt(self) -> None:
        """Ask the process to stop; another one may be run after it."""
        if self._process and self._process.returncode is None:
            self._process.terminate()

    def send_signal(self, signum: signal.Signals) -> None:
        """Send the process a signal, if it runs."""
        if self._process and self._process.returncode is None:
            self._process.send_signal(signum)

    def kill(self) -> None:
        """End the process and whatever it started, now."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _spawn(self, write_end: int) -> asyncio.subprocess.Process:
        again = self._spec.again if self._starts else ()
        self._starts += 1
        return await asyncio.create_subprocess_exec(
            *_tethered(self._spec),
            *again,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=self._spec.inherited_fds,
            env=self._spec.environment,
            start_new_session=True,
        )

    async def _show_output(self, read_end: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        lines = LineAssembler()
        try:
            while chunk := await reader.read(CHUNK):
                self._show(self.name, lines.feed(chunk))
        finally:
            self._show(self.name, lines.rest())
            transport.close()


def _tethered(spec: ChildSpec) -> list[str]:
    if sys.platform != "linux":
        return list(spec.argv)
    # -I -S: no site directory, no environment; the interpreter is only passing through.
    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(tether.__file__)),
        str(os.getpid()),
        str(int(spec.orphan_signal)),
        *spec.argv,
    ]

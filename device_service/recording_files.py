"""Recordings on disk: when they are written, where, and how many are kept.

One is written when the engine dies and when the process gets SIGUSR1. Nothing
here needs the engine thread: an engine that hangs in a step is recorded too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from pathlib import Path

from device_service.codec.recording import encode
from device_service.engine import Engine
from device_service.recording.recorder import Recording
from device_service.recording_directory import make_directory
from device_service.wording import one_line

logger = logging.getLogger(__name__)

SUFFIX = ".ttrec"
MOST_FILES = 16
"""Recordings kept in a directory; the oldest go first."""

LONGEST_WRITE_SECONDS = 3600.0
"""Nothing is still being written to a file that has not changed for so long."""

LAST_WRITE_SECONDS = 1.0
"""How long the end of a process waits for the recording of what ended it."""


def write_recording(directory: Path, recording: Recording) -> Path:
    """Write a file that only its owner can read, whole or not at all.

    Removes the oldest beyond MOST_FILES, and what a process that was killed had
    begun. Any thread. Raises OSError.
    """
    make_directory(directory)
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(recording.unix_seconds))
    millis = int(recording.unix_seconds % 1 * 1000)
    name = f"{moment}.{millis:03}Z-{os.getpid()}-{recording.reason}{SUFFIX}"
    # Its mode is 0600, whatever the umask.
    handle, part = tempfile.mkstemp(dir=directory, prefix=f".{name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(encode(recording))
        os.replace(part, directory / name)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    written = (directory / name).stat().st_mtime
    for begun in directory.glob(f".*{SUFFIX}.*"):
        with contextlib.suppress(FileNotFoundError):  # another service's, done now
            if begun.stat().st_mtime < written - LONGEST_WRITE_SECONDS:
                begun.unlink()
    for old in sorted(directory.glob(f"*{SUFFIX}"))[:-MOST_FILES]:
        old.unlink(missing_ok=True)
    return directory / name


class RecordingFiles:
    """Writes the recordings of one service. Event loop only."""

    def __init__(self, directory: Path) -> None:
        """From now on SIGUSR1 asks for a recording."""
        self._directory = directory
        try:
            make_directory(directory)
        except OSError as error:
            logger.warning(
                "recordings cannot be written to %s: %s; --recording-dir names another "
                "place",
                directory,
                error.strerror,
            )
        self._engine: Engine | None = None
        self._writing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGUSR1, self._on_signal)

    def follow(self, engine: Engine) -> None:
        """Record this engine, and what ends it, should it die."""
        self._engine = engine
        engine.died.add_done_callback(
            lambda ended: (
                ended.exception()
                and self._loop.call_soon_threadsafe(self._write, "fatal")
            )
        )

    async def written(self) -> None:
        """Wait for what is being written, but not for long."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=LAST_WRITE_SECONDS)

    def _on_signal(self) -> None:
        """One at a time: many signals must hold up neither the loop nor the disk."""
        if not self._writing:
            self._write("signal")

    def _write(self, reason: str) -> None:
        task = asyncio.create_task(self._record(reason))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _record(self, reason: str) -> None:
        recording = None if self._engine is None else self._engine.recording(reason)
        if recording is None:
            logger.warning("there is nothing to record yet")
            return
        try:
            path = await asyncio.to_thread(write_recording, self._directory, recording)
        except Exception as error:  # noqa: BLE001 - must not hide what it tells of
            logger.error(
                "no recording could be written to %s: %s; --recording-dir names "
                "another place",
                self._directory,
                one_line(error),
            )
            return
        steps = len(recording.steps)
        logger.info("recording of %d steps (%s): %s", steps, reason, path)

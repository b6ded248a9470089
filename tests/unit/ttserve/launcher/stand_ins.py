"""A supervisor in a process of its own, and children for it to look after."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE = 15.0
QUICK = {"first_delay": 0.01, "longest_delay": 0.05, "grace": 10.0}


def start_supervisor(setup: dict[str, Any]) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("run_supervisor.py")
    return subprocess.Popen(
        [sys.executable, str(script), json.dumps(setup)],
        stdout=subprocess.PIPE,
        text=True,
    )


class Launched:
    """A running supervisor: what it printed so far, and how it ended."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.process = start_supervisor(setup)
        self.lines: list[str] = []
        self._arriving: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arriving.put(line.rstrip("\n"))

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The next line that matches, from where the last call stopped."""
        deadline = time.monotonic() + DEADLINE
        while (left := deadline - time.monotonic()) > 0:
            try:
                self.lines.append(self._arriving.get(timeout=left))
            except queue.Empty:
                break
            if found := re.search(pattern, self.lines[-1]):
                return found
        raise AssertionError(f"no line like {pattern!r} in {self.lines}")

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def exit_code(self) -> int:
        """Wait for the end; all lines are in `lines` then."""
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        while not self._arriving.empty():
            self.lines.append(self._arriving.get())
        return code

    def end(self) -> None:
        self.process.kill()
        self.exit_code()
        assert self.process.stdout is not None
        self.process.stdout.close()


def python(script: str, *args: str) -> list[str]:
    """A child that runs `script`, without the cost of a site directory."""
    return [sys.executable, "-I", "-S", "-u", "-c", script, *args]


# Prints its pid and its end; SIGTERM ends it.
OBEDIENT = """
import os, signal, sys
def end(*_):
    print("ending"); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("pid", os.getpid())
while True: signal.pause()
"""

# Cannot be asked to end.
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pid", os.getpid())
while True: signal.pause()
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)

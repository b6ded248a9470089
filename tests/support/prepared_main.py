"""A process that has imported what a command imports, and forks: see prepared.py.

    python -m tests.support.prepared_main MODULE FD

FD is a socket on which the owner asks for forks. A fork becomes `python -m MODULE`,
by running that or, where running it here would not be the same, by exec.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttserve.environment import prepare_device_service, prepare_frontend

MAX_REQUEST = 1 << 20
PR_SET_PDEATHSIG = 1

# They decide how lines are logged, which is set up before the imports.
EARLY_OPTIONS = ("--log-format", "--log-config-file", "--config")
# Read when a service starts. Any other may be read by an import.
LATE_VARIABLES = ("PYTEST_", "TT_", "MESH_DEVICE")


@dataclass(frozen=True, slots=True)
class Request:
    """What a fork is to be, and its files: standard output, errors, who is told."""

    directory: str
    environment: dict[str, str]
    options: list[str]
    files: list[int]


class Forker:
    """Forks on request, and tells how each fork ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        # By their descriptors; each has somebody who is told.
        self._forks: dict[int, tuple[int, socket.socket]] = {}

    def next_fork(self) -> Request:
        """Comes back in a fork, with what it is to be."""
        while True:
            control = self._control.fileno()
            for fd in select.select([control, *self._forks], [], [])[0]:
                if fd != control:
                    self._tell_status(fd)
                elif (request := self._fork()) is not None:
                    return request

    def _fork(self) -> Request | None:
        said, files, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 3)
        if not said:
            os._exit(0)  # the owner is gone
        directory, environment, *options = json.loads(said)
        pid = os.fork()
        if pid == 0:
            self._leave()
            return Request(directory, environment, options, files)
        *output, told = files
        for fd in output:
            os.close(fd)
        pidfd, owner = os.pidfd_open(pid), socket.socket(fileno=told)
        self._forks[pidfd] = pid, owner
        _tell(owner, pid, pidfd)
        return None

    def _leave(self) -> None:
        """In a fork: let go of what is the others'."""
        self._control.close()
        for pidfd, (_, owner) in self._forks.items():
            os.close(pidfd)
            owner.close()

    def _tell_status(self, pidfd: int) -> None:
        pid, owner = self._forks.pop(pidfd)
        os.close(pidfd)
        with owner:
            _tell(owner, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _tell(owner: socket.socket, number: int, *fds: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        socket.send_fds(owner, [str(number).encode()], fds)


def main(module: str, control: int) -> None:
    """Import, then fork; ends with the owner."""
    given = dict(os.environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the owner
    trouble = prepare(module)
    gc.collect()
    gc.freeze()
    prepared = os.getpid()
    request = Forker(socket.socket(fileno=control)).next_fork()

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != prepared:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _take_files(request.files)
    if trouble:
        sys.stderr.write(f"not forked: {trouble}\n")
    reason = trouble or why_not_here(request, given)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    words = ["-m", module, *request.options]
    if reason:
        os.execv(sys.executable, [sys.executable, *words])
    sys.argv[1:] = request.options
    sys.orig_argv[1:] = words
    _seed()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def prepare(module: str) -> str:
    """Import what the command imports; why nothing can be forked then, or ""."""
    try:
        PREPARE.get(module, lambda: None)()
    except Exception as error:  # noqa: BLE001 - the command itself will say it
        return f"it cannot be imported: {error}"
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        return f"the imports have started {threads - 1} threads"
    return ""


def _device_service() -> None:
    from device_service.__main__ import QUIET

    del sys.modules["device_service.__main__"]  # forks run it anew
    prepare_device_service(model=None)
    for name, value in QUIET:
        os.environ.setdefault(name, value)
    import device_service.config
    import device_service.startup  # noqa: F401


def _frontend() -> None:
    prepare_frontend()
    import uvloop  # noqa: F401

    import frontend.app
    import frontend.engine.build
    import frontend.process  # noqa: F401


PREPARE = {"device_service": _device_service, "frontend": _frontend}


def why_not_here(request: Request, given: Mapping[str, str]) -> str:
    """Why a command cannot run in a fork, or would not do the same; "" if it can.

    `given` is the environment before the imports, which also set some variables.
    """
    early = {option.partition("=")[0] for option in request.options}
    if early.intersection(EARLY_OPTIONS):
        return "an option is heeded before the imports"
    if request.directory != sys.path[0]:
        return "modules may be found elsewhere"
    asked = request.environment
    for name in sorted(given.keys() | asked.keys()):
        as_ours = asked.get(name) in (given.get(name), os.environ.get(name))
        if not as_ours and not name.startswith(LATE_VARIABLES):
            return f"{name} may be read by an import"
    return ""


def _take_files(files: Sequence[int]) -> None:
    output, errors, told = files
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for fd in files:
        os.close(fd)


def _seed() -> None:
    """Forks must not draw alike; `random` sees to that itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

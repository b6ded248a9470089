"""`python tether.py PARENT SIGNAL COMMAND…` ties COMMAND to its PARENT.

A launcher that is killed outright can stop nobody, so the kernel does it: it
sends SIGNAL to the command when PARENT ends (Linux; PR_SET_PDEATHSIG survives
an ordinary exec). The setting has to be made between fork and exec. Doing it
here, in a fresh interpreter, keeps arbitrary Python out of that gap, where
`preexec_fn` would run it. Only the standard library; about 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, signum: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        sys.exit(f"tether: prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before prctl: then no signal will ever come.
    if os.getppid() != parent:
        sys.exit("tether: the parent ended before the command began")
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"tether: cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

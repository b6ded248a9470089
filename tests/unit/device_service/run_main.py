"""Runs `main` on several command lines in one process, as imports are slow.

stdin: a JSON list of [argv, environment]. stdout: a JSON list of [status, stderr].
Every command line must fail to start.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence

from device_service.__main__ import main


def run(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    saved = dict(os.environ)
    stderr = os.dup(2)
    with tempfile.TemporaryFile("w+") as captured:
        os.environ.update(environment)
        os.dup2(captured.fileno(), 2)
        try:
            status = main(argv)
        except SystemExit as left:
            status = int(left.code or 0)
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            os.environ.clear()
            os.environ.update(saved)
        captured.seek(0)
        return status, captured.read()


if __name__ == "__main__":
    results = [run(argv, environment) for argv, environment in json.load(sys.stdin)]
    json.dump(results, sys.stdout)

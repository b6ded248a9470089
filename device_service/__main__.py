"""`tt-device-service`: opens the mesh, loads the model, serves it over gRPC.

Exit status: 0 after a signal, 1 when the engine died, 2 when what was asked for
cannot be served.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from ttserve.environment import prepare_device_service
from ttserve.errors import StartupError
from ttserve.signals import leave_at_once

logger = logging.getLogger("device_service")

PROGRAM = "tt-device-service"
USAGE_STATUS = 2
FAILURE_STATUS = 1

QUIET = (
    # Its warnings are about kernels and a server that we do not run.
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    # It warns about defaults in configurations that say otherwise.
    ("TRANSFORMERS_VERBOSITY", "error"),
    # What goes wrong comes as an exception, too, and is said once.
    ("GRPC_VERBOSITY", "NONE"),
    # It warns that a compiler is missing that no mesh uses.
    ("TORCH_LOGS", "-torch._library.triton"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns only when it could not serve."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        leave_at_once()
        _log_to_stderr()
        prepare_device_service(_model_argument(arguments))
        for name, value in QUIET:
            os.environ.setdefault(name, value)  # noqa: TID251 - before any import
        status = _serve(arguments)
    except StartupError as error:
        for line in str(error).splitlines():
            _say(line)
        return USAGE_STATUS
    except Exception as error:
        logger.debug("unexpected", exc_info=error)
        _say(f"unexpected {type(error).__name__}: {' '.join(str(error).split())}")
        return FAILURE_STATUS
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed. A start that was given up may have left a thread in
    # the middle of an import or a download; it must not hold up the end.
    os._exit(status)


def _serve(arguments: Sequence[str]) -> int:
    # These import vLLM and torch, which read the environment once.
    from device_service.config import parse_args
    from device_service.startup import run

    return asyncio.run(run(parse_args(arguments)))


def _model_argument(arguments: Sequence[str]) -> str | None:
    """What `--model` says, here or in a file of options; nothing is parsed yet."""
    given = {"--model": "", "--config": ""}
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in given:
            following = arguments[index + 1 : index + 2]
            given[name] = value if equals else "".join(following)
    return given["--model"] or _model_in_file(given["--config"])


def _model_in_file(name: str) -> str | None:
    try:
        options = yaml.safe_load(Path(name).read_text()) if name else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None  # the parser will say what is wrong with the file
    model = options.get("model") if isinstance(options, dict) else None
    return model if isinstance(model, str) else None


def _log_to_stderr() -> None:
    """Our own lines from INFO on, other libraries' from WARNING on."""
    logging.basicConfig(
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    for name in ("device_service", "ttserve"):
        logging.getLogger(name).setLevel(logging.INFO)


def _say(line: str) -> None:
    sys.stderr.write(f"{PROGRAM}: error: {line}\n")


if __name__ == "__main__":
    sys.exit(main())

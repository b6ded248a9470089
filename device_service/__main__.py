"""`tt-device-service`: opens the mesh, loads the model, serves it over gRPC.

Exit status: 0 after a signal, 1 when the engine died, 2 when what was asked for
cannot be served.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from ttserve.environment import prepare_device_service, silence_vllm_logging
from ttserve.errors import StartupError
from ttserve.logs import log_json, logs_json
from ttserve.signals import leave_at_once

logger = logging.getLogger("device_service")

PROGRAM = "tt-device-service"
USAGE_STATUS = 2
FAILURE_STATUS = 1
EARLY = ("--model", "--log-format")

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
        # It asks for a recording, of which there is none yet, and would end us.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        given = _early_options(arguments)
        _log_to_stderr(as_json=given["--log-format"] == "json")
        prepare_device_service(given["--model"] or None)
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


def _early_options(arguments: Sequence[str]) -> dict[str, str]:
    """What the options say that matter before anything is parsed or imported, here or
    in a file of options; empty where they say nothing.
    """
    given = dict.fromkeys(("--config", *EARLY), "")
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in given:
            following = arguments[index + 1 : index + 2]
            given[name] = value if equals else "".join(following)
    in_file = _options_in_file(given["--config"])
    return {
        name: value or in_file.get(name.removeprefix("--"), "")
        for name, value in given.items()
    }


def _options_in_file(name: str) -> dict[str, str]:
    try:
        options = yaml.safe_load(Path(name).read_text()) if name else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}  # the parser will say what is wrong with the file
    found = options.items() if isinstance(options, dict) else ()
    return {key: value for key, value in found if isinstance(value, str)}


def _log_to_stderr(*, as_json: bool) -> None:
    """Our own lines from INFO on, other libraries' from WARNING on."""
    if as_json:
        log_json(PROGRAM)
        logging.getLogger("vllm").setLevel(silence_vllm_logging("ERROR"))
    else:
        logging.basicConfig(
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(message)s",
            datefmt="%H:%M:%S",
        )
    for name in ("device_service", "ttserve"):
        logging.getLogger(name).setLevel(logging.INFO)


def _say(line: str) -> None:
    if logs_json():
        logger.error("%s", line)
    else:
        sys.stderr.write(f"{PROGRAM}: error: {line}\n")


if __name__ == "__main__":
    sys.exit(main())

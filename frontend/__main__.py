"""`tt-frontend`: the OpenAI API over HTTP, for a model in a device service."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from frontend import options
from frontend.config import FrontendConfig, read_command_line, unaccepted_option
from frontend.http.server import bind
from frontend.log import configure_logging
from ttserve.environment import prepare_frontend
from ttserve.errors import StartupError
from ttserve.logs import logs_json
from ttserve.signals import leave_at_once

CANNOT_START = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until stopped; never returns.

    The process ends without waiting for its threads: one of them may be
    importing vLLM, and there is nothing to save.
    """
    status = _run(sys.argv[1:] if arguments is None else arguments)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(arguments: Sequence[str]) -> int:
    try:
        leave_at_once()
        # It asks device services for a recording, and would end a frontend.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # Before anything imports vLLM, torch or tokenizers.
        prepare_frontend()
        config = read_command_line(arguments)
        stranger = unaccepted_option(config.vllm_arguments)
        if stranger is not None:
            raise StartupError(options.refusal(stranger))
        configure_logging(config.http, config.name)
        return _serve(config, bind(config.http))
    except StartupError as error:
        if logs_json():
            logging.getLogger("frontend").error("%s", error)
        else:
            sys.stderr.write(f"tt-frontend: {error}\n")
        return CANNOT_START


def _serve(config: FrontendConfig, listener: socket.socket) -> int:
    import uvloop

    from frontend.process import Frontend

    async def serve() -> int:
        return await Frontend(config).run(listener)

    status: int = uvloop.run(serve())
    return status


if __name__ == "__main__":
    main()

"""Log lines of a frontend."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from pathlib import Path

from ttserve.errors import StartupError

_FORMAT = "%(levelname)s %(asctime)s %(message)s"


def configure_logging(level: str, config_file: str | None) -> None:
    """Log to standard error as vLLM and uvicorn do, or as a file says (JSON)."""
    if config_file is not None:
        try:
            logging.config.dictConfig(json.loads(Path(config_file).read_text()))
        except (OSError, ValueError) as error:
            raise StartupError(f"--log-config-file {config_file}: {error}") from error
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%m-%d %H:%M:%S"))
    logger = logging.getLogger("frontend")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel("DEBUG" if level == "trace" else level.upper())

"""Log lines of a frontend."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from pathlib import Path

from frontend.config import HttpConfig
from frontend.http.notes import current_notes
from ttserve.environment import silence_vllm_logging
from ttserve.errors import StartupError
from ttserve.logs import log_json
from ttserve.trace_context import trace_id

_FORMAT = "%(levelname)s %(asctime)s %(message)s"


def configure_logging(http: HttpConfig, process: str) -> None:
    """Log to standard error as vLLM and uvicorn do, or as JSON, or as a file says.

    `process` is the frontend's name.
    """
    if http.log_config_file is not None:
        if http.log_format == "json":
            raise StartupError(
                "--log-config-file says how lines are written; leave out --log-format"
            )
        _follow_file(http.log_config_file)
        return
    level = "DEBUG" if http.log_level == "trace" else http.log_level.upper()
    logger = logging.getLogger("frontend")
    logger.setLevel(level)
    if http.log_format == "json":
        log_json(process, _NameRequest())
        logging.getLogger("ttserve").setLevel(level)
        logging.getLogger("vllm").setLevel(silence_vllm_logging("INFO"))
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%m-%d %H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.propagate = False


def _follow_file(name: str) -> None:
    try:
        logging.config.dictConfig(json.loads(Path(name).read_text()))
    except (OSError, ValueError) as error:
        raise StartupError(f"--log-config-file {name}: {error}") from error


class _NameRequest(logging.Filter):
    """Lines that are logged while an HTTP request is served say which one it is."""

    def filter(self, record: logging.LogRecord) -> bool:
        notes = current_notes()
        if notes.request_id:
            record.request_id = notes.request_id
            record.trace_id = trace_id(notes.trace_headers)
        return True

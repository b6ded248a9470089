"""Log lines as JSON: one object per line, on standard error.

    {"time": "2026-11-30T14:52:31.123456+00:00", "level": "INFO",
     "logger": "device_service.journal", "message": "…", "process": "tt-device-service",
     "request_id": "…", "engine_request_id": "…", "trace_id": "…", "exception": "…"}

The last four stand where they are known. python-json-logger, which vLLM brings,
writes them: it knows which fields of a record are its own and makes JSON of
whatever others were given.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

FORMATS = ("text", "json")

_FIELDS = {"levelname": "level", "name": "logger", "exc_info": "exception"}


class OneObjectPerLine(JsonFormatter):
    """Fields that are empty are left out."""

    def __init__(self, process: str) -> None:
        super().__init__(
            ["levelname", "name", "message"],
            rename_fields=_FIELDS,
            static_fields={"process": process},
            # uvicorn's, the message once more with escape codes.
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],
            timestamp="time",
            json_ensure_ascii=False,
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """The time first, as people read it."""
        time = log_data.pop("time")
        kept = {
            name: value for name, value in log_data.items() if value not in ("", None)
        }
        return {"time": time, **kept}


def log_json(process: str, *filters: logging.Filter) -> None:
    """Let everything that is logged, warned or raised in vain come as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneObjectPerLine(process))
    for item in filters:
        handler.addFilter(item)
    logging.root.handlers[:] = [handler]
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda hook: _log_uncaught(
        hook.exc_type, hook.exc_value, hook.exc_traceback
    )


def logs_json() -> bool:
    """Whether `log_json` is in force."""
    formatters = (handler.formatter for handler in logging.root.handlers)
    return any(isinstance(formatter, OneObjectPerLine) for formatter in formatters)


def _log_uncaught(
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    details = (kind, error or kind(), traceback)
    logging.getLogger("ttserve").critical(
        "uncaught %s", kind.__name__, exc_info=details
    )

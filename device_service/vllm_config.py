"""vLLM's configuration, built by vLLM's own engine arguments."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext

from device_service.wording import one_line
from ttserve.errors import StartupError

DAMAGE = (json.JSONDecodeError, SafetensorError, struct.error)
"""What reading a cut or garbled file raises; it names no file."""

_REGISTRY = logging.getLogger("vllm.model_executor.models.registry")


def create_vllm_config(values: dict[str, object]) -> VllmConfig:
    """Let vLLM build and verify its configuration.

    vLLM raises whatever it meets, from pydantic's reports to missing packages,
    and every one of them means that these options cannot be served. Raises
    StartupError.
    """
    with _heard() as reasons:
        try:
            arguments = AsyncEngineArgs(**values)  # type: ignore[arg-type]
            return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        except StartupError:
            raise
        except Exception as error:
            why = "".join(f" ({reason})" for reason in reasons[:1])
            if isinstance(error, DAMAGE):
                why += f"; a file of --model {values['model']} is damaged"
            raise StartupError(f"{one_line(error)}{why}") from error


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Keep what vLLM logs about a model class that it cannot inspect.

    It does that in a process of its own, prints the traceback and raises only
    "check the logs"; the traceback's last line is the reason.
    """
    reasons: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info is None or record.exc_info[1] is None:
            return True
        lines = str(record.exc_info[1]).strip().splitlines()
        reasons.extend(lines[-1:])
        return False

    _REGISTRY.addFilter(keep)
    try:
        yield reasons
    finally:
        _REGISTRY.removeFilter(keep)

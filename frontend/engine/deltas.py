"""Streams of a parser that lose no logprobs."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.parser.abstract_parser import Parser


def keeping_logprobs(parser: type[Parser]) -> type[Parser]:
    """The same parser, but no chunk is dropped from a stream with logprobs.

    vLLM sends nothing for a token in which its parser found nothing to say yet
    (a piece of a character, for one), and drops its logprobs with it.
    """

    class KeepingLogprobs(parser):  # type: ignore[valid-type, misc]
        def parse_delta(self, *args: Any, **kwargs: Any) -> DeltaMessage | None:
            found: DeltaMessage | None = super().parse_delta(*args, **kwargs)
            request = kwargs["request"] if "request" in kwargs else args[2]
            wanted = getattr(request, "logprobs", None)
            return DeltaMessage() if found is None and wanted else found

    KeepingLogprobs.__name__ = KeepingLogprobs.__qualname__ = parser.__name__
    return KeepingLogprobs

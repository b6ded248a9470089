"""TTServeError -> what vLLM's server turns into the right HTTP answer."""

from __future__ import annotations

import logging
from http import HTTPStatus

from vllm.exceptions import (
    GracefulHTTPError,
    VLLMClientError,
    VLLMError,
    VLLMValidationError,
)

from frontend.http.notes import current_notes
from ttserve.errors import Reason, TTServeError

API_NAMES = {
    "prompt_token_ids": "prompt",
    "max_output_tokens": "max_tokens",
    "min_output_tokens": "min_tokens",
    "eos_token_id": "stop_token_ids",
    "structured_output": "structured_outputs",
    "repetition": "repetition_detection",
    "top_count": "top_logprobs",
    "extra_args": "vllm_xargs",
    "_bad_words_token_ids": "bad_words",
}
"""Names on the wire and in vLLM's records that HTTP clients do not know."""

_GRAMMAR_FIELDS = ("structured_output", "structured_outputs")


class RequestFailure(GracefulHTTPError):
    """A failure of the service, with the HTTP status that its reason has.

    vLLM passes it through generators and handlers as it is, without a stack
    trace in the log or an abort of its own.
    """

    def __init__(self, error: TTServeError) -> None:
        super().__init__(error.message, HTTPStatus(error.consequence.http_status))
        self.error = error


def as_vllm_error(error: TTServeError) -> VLLMError:
    """The exception to raise towards vLLM."""
    if error.consequence.http_status != HTTPStatus.BAD_REQUEST:
        return RequestFailure(error)
    return VLLMValidationError(error.message, parameter=parameter_name(error))


def parameter_name(error: TTServeError) -> str | None:
    """The request parameter that an error is about, as HTTP clients write it."""
    if error.reason is Reason.PROMPT_TOO_LONG:
        return "prompt"
    field = error.metadata.get("field", "")
    if field.startswith(_GRAMMAR_FIELDS) or error.reason is Reason.GRAMMAR:
        return "structured_outputs"
    name = field.rpartition(".")[2]
    return API_NAMES.get(name, name) or None


_GENERATORS = (
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.completion.serving",
    "vllm.entrypoints.openai.responses.serving",
    "vllm.entrypoints.anthropic.serving",
    "vllm.entrypoints.anthropic.api_router",
)


class _ExpectedFailures(logging.Filter):
    """Drops the stack traces of refusals: they are answers, not defects.

    So are those of what vLLM makes of a failure that is known already.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        expected = isinstance(error, GracefulHTTPError | VLLMClientError)
        return not (expected or (error and current_notes().failure))


def quieten_expected_failures() -> None:
    """vLLM logs every exception in a stream, a full queue included, with its stack."""
    for name in _GENERATORS:
        logging.getLogger(name).addFilter(_ExpectedFailures())

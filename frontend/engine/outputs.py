"""vLLM's output processor, mended where its answers are not quite right.

It makes a state for every request; here some parts of that state are replaced
before the first output arrives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry import trace
from vllm.reasoning import ReasoningParserManager
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor, RequestState

from frontend.engine.logprobs import ExactLogprobs
from frontend.engine.reasoning import StopsAfterReasoning
from frontend.engine.spans import RequestSpans


class MendedOutputProcessor(OutputProcessor):
    """Exact logprobs, stop strings that look at the answer only, and spans that
    are open while their request is.
    """

    def __init__(self, plain: OutputProcessor, reasoning_parser: str) -> None:
        super().__init__(
            plain.tokenizer,
            log_stats=plain.log_stats,
            stream_interval=plain.stream_interval,
            tracing_enabled=plain.tracing_enabled,
        )
        self.spans = RequestSpans(trace.get_tracer("ttserve.frontend"))
        special = plain.tokenizer.all_special_ids if plain.tokenizer else ()
        self._special_ids = frozenset(special)
        self._reasoning_parser = (
            ReasoningParserManager.get_reasoning_parser(reasoning_parser)
            if reasoning_parser
            else None
        )

    def add_request(
        self, request: EngineCoreRequest, *args: Any, **kwargs: Any
    ) -> None:
        """Register a request as vLLM does, then mend its state."""
        super().add_request(request, *args, **kwargs)
        if self.tracing_enabled:
            self.spans.begin(request)
        state = self.request_states[request.request_id]
        # The detokenizer first: the logprobs follow it.
        self._mend_stop_strings(state, request)
        self._mend_logprobs(state)

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:  # noqa: FBT001 - vLLM's signature
        """Give up requests as vLLM does."""
        given_up: list[str] = super().abort_requests(request_ids, internal)
        self.spans.abort(given_up)
        return given_up

    def do_tracing(
        self, engine_core_output: EngineCoreOutput, req_state: RequestState, *_: Any
    ) -> None:
        """A request has ended: so does its span."""
        self.spans.finish(req_state, engine_core_output.finish_reason)

    def _mend_stop_strings(
        self, state: RequestState, request: EngineCoreRequest
    ) -> None:
        if self._reasoning_parser is None or self.tokenizer is None:
            return
        detokenizer = state.detokenizer
        if request.reasoning_ended is not False:  # None: nobody parses the output
            return
        if isinstance(detokenizer, BaseIncrementalDetokenizer) and detokenizer.stop:
            arguments = request.reasoning_parser_kwargs or {}
            parser = self._reasoning_parser(self.tokenizer, **arguments)
            state.detokenizer = StopsAfterReasoning(detokenizer, parser)

    def _mend_logprobs(self, state: RequestState) -> None:
        plain, detokenizer = state.logprobs_processor, state.detokenizer
        if plain is None or plain.num_logprobs is None:
            return
        if isinstance(detokenizer, BaseIncrementalDetokenizer | StopsAfterReasoning):
            state.logprobs_processor = ExactLogprobs(
                plain, detokenizer, self._special_ids
            )

"""What was produced -> GenerateResponse messages of a gateway's call.

The protocol's rules, as SMG reads them: a streamed call gets chunks of new tokens
and then, per output, a `complete` that repeats the tokens and log probabilities of
the last chunk (whose count is theirs); a call that is not streamed gets one
`complete` per output, with everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smg_grpc_proto import vllm_engine_pb2

from device_service.gateway.requests import Choice, GatewayCall
from device_service.merging import Delta
from device_service.records import FinishKind, TokenLogprobs

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has no word for; vLLM's server does so."""


class ChoiceResponses:
    """The messages of one output of a call."""

    def __init__(self, call: GatewayCall, choice: Choice) -> None:
        self._stream = call.stream
        self._prompt_tokens = call.prompt_tokens
        self._top = choice.candidate.top_logprobs
        self._index = choice.candidate.handle
        self._stop_strings = choice.stop_strings
        self._cached_tokens = 0
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self.complete = False
        self.matched: str | None = None

    def add(self, delta: Delta) -> Iterator[Any]:
        """The messages for what is new; none once the output is complete.

        Raises the error that ended the request.
        """
        finish = delta.finish
        if self.complete:
            return
        if finish is not None and finish.error is not None:
            raise finish.error
        if delta.prefill is not None:
            self._cached_tokens = delta.prefill.cached_tokens
        if self._stream:
            self._token_ids, self._logprobs = delta.token_ids, delta.logprobs or []
        else:
            self._token_ids += delta.token_ids
            self._logprobs += delta.logprobs or ()
        if self._stop_strings is not None:
            stopped = finish is not None and finish.kind is FinishKind.STOP
            self.matched = self._stop_strings.match(delta.token_ids, stopped=stopped)
        if self._stream and delta.token_ids:
            yield self._chunk()
        if finish is not None or self.matched is not None:
            self.complete = True
            yield self._complete(delta)

    def _chunk(self) -> Any:
        return vllm_engine_pb2.GenerateResponse(
            chunk=vllm_engine_pb2.GenerateStreamChunk(
                token_ids=self._token_ids,
                prompt_tokens=self._prompt_tokens,
                completion_tokens=len(self._token_ids),
                cached_tokens=self._cached_tokens,
                output_logprobs=self._output_logprobs(),
                index=self._index,
            )
        )

    def _complete(self, delta: Delta) -> Any:
        finish = delta.finish
        reason = FinishKind.STOP if finish is None else finish.kind
        complete = vllm_engine_pb2.GenerateComplete(
            output_ids=self._token_ids,
            finish_reason=FinishKind.STOP.value if self.matched else reason.value,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self._token_ids),
            cached_tokens=self._cached_tokens,
            output_logprobs=self._output_logprobs(),
            index=self._index,
        )
        if self.matched is not None:
            complete.matched_stop_str = self.matched
        elif finish is not None and finish.stop_token_id is not None:
            complete.matched_token_id = finish.stop_token_id
        return vllm_engine_pb2.GenerateResponse(complete=complete)

    def _output_logprobs(self) -> Any:
        if not self._logprobs:
            return None
        return vllm_engine_pb2.OutputLogProbs(
            token_ids=self._token_ids,
            token_logprobs=[_finite(entry.chosen) for entry in self._logprobs],
            top_logprobs=[
                vllm_engine_pb2.TopLogProbs(
                    token_ids=entry.top_ids, values=map(_finite, entry.top_values)
                )
                for entry in self._logprobs
            ]
            if self._top
            else (),
        )


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)

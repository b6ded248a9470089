"""Logprobs whose tokens spell exactly the text that was sent.

A character can be spread over several tokens. vLLM decodes every token alone
and repairs only those that end in a replacement character, so the entries do
not always add up to the text. The detokenizer knows what each token added to
it; that, and nothing else, is the token's text here: nothing for a piece of a
character that is not complete yet, the character for the piece that completes
it. A token that is no part of the text at all (end of sequence) keeps its name
and has no bytes.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.engine.output_processor import OutputProcessor


class ExactLogprobs(LogprobsProcessor):
    """Relies on one token per output, which the codec sees to."""

    def __init__(
        self,
        plain: LogprobsProcessor,
        detokenizer: BaseIncrementalDetokenizer,
        special_ids: frozenset[int],
    ) -> None:
        super().__init__(
            tokenizer=plain.tokenizer,
            logprobs=plain.logprobs,
            prompt_logprobs=plain.prompt_logprobs,
            cumulative_logprob=plain.cumulative_logprob,
            num_logprobs=plain.num_logprobs,
            num_prompt_logprobs=plain.num_prompt_logprobs,
        )
        self._detokenizer = detokenizer
        self._special_ids = special_ids
        self._seen = 0
        self._added: str | None = ""

    def update_from_output(self, output: EngineCoreOutput) -> None:
        """Note what the token added; the detokenizer has taken it already."""
        text = self._detokenizer.output_text
        self._added = text[self._seen :] if len(text) >= self._seen else None
        self._seen = len(text)
        super().update_from_output(output)

    def _verify_tokens(
        self,
        decoded_tokens_list: list[Any],
        tokens: list[int],
        context_token_ids: list[int] | None = None,
    ) -> list[Any]:
        """Repair the alternatives as vLLM does; the chosen token is known."""
        verified = super()._verify_tokens(
            decoded_tokens_list, tokens, context_token_ids
        )
        chosen = tokens[0]
        if self._added is None:  # a stop string cut the text: nothing to go by
            return verified
        text = self._added or (None if chosen in self._special_ids else "")
        return [
            text if token_id == chosen else decoded
            for token_id, decoded in zip(tokens, verified, strict=True)
        ]


class ExactOutputProcessor(OutputProcessor):
    """vLLM's, with exact logprobs for requests that ask for logprobs."""

    _special_ids: frozenset[int] = frozenset()

    @classmethod
    def replacing(cls, plain: OutputProcessor) -> ExactOutputProcessor:
        """One with the settings of another that has no requests yet."""
        exact = cls(
            plain.tokenizer,
            log_stats=plain.log_stats,
            stream_interval=plain.stream_interval,
            tracing_enabled=plain.tracing_enabled,
        )
        if plain.tokenizer is not None:
            exact._special_ids = frozenset(plain.tokenizer.all_special_ids)
        return exact

    def add_request(
        self, request: EngineCoreRequest, *args: Any, **kwargs: Any
    ) -> None:
        """Register a request as vLLM does."""
        super().add_request(request, *args, **kwargs)
        state = self.request_states[request.request_id]
        plain, detokenizer = state.logprobs_processor, state.detokenizer
        if plain is None or plain.num_logprobs is None:
            return
        if isinstance(detokenizer, BaseIncrementalDetokenizer):
            state.logprobs_processor = ExactLogprobs(
                plain, detokenizer, self._special_ids
            )

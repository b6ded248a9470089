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

from typing import Any, TypeAlias

from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor

from frontend.engine.reasoning import StopsAfterReasoning

Detokenizer: TypeAlias = BaseIncrementalDetokenizer | StopsAfterReasoning
"""Those that keep the text."""


class ExactLogprobs(LogprobsProcessor):
    """Relies on one token per output, which the codec sees to."""

    def __init__(
        self,
        plain: LogprobsProcessor,
        detokenizer: Detokenizer,
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

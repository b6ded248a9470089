"""Stop strings that leave the model's reasoning alone.

A stop string is about the answer. vLLM looks for it in everything the model
says, and a model that thinks about its question may well write it down.
"""

from __future__ import annotations

from vllm.reasoning import ReasoningParser
from vllm.v1.engine.detokenizer import (
    BaseIncrementalDetokenizer,
    IncrementalDetokenizer,
)


class StopsAfterReasoning(IncrementalDetokenizer):
    """Another detokenizer, whose stop strings wait for the end of the reasoning."""

    def __init__(
        self, plain: BaseIncrementalDetokenizer, parser: ReasoningParser
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plain = plain
        self._parser = parser
        self._stop_strings = plain.stop
        self._reasoning = True
        plain.stop = []

    @property
    def output_text(self) -> str:
        """Everything said so far, as far as it is complete."""
        return self._plain.output_text

    @property
    def output_token_ids(self) -> list[int]:
        """The tokens of it."""
        return self._plain.output_token_ids

    def num_output_tokens(self) -> int:
        """How many they are."""
        return self._plain.num_output_tokens()

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:  # noqa: FBT001 - vLLM's signature
        """Take tokens; the stop string that they complete, outside of reasoning."""
        matched = self._plain.update(new_token_ids, stop_terminated)
        if self._reasoning and self._parser.is_reasoning_end_streaming(
            self._plain.output_token_ids, new_token_ids
        ):
            self._reasoning = False
            self._plain.stop = self._stop_strings
        return matched

    def get_next_output_text(self, finished: bool, delta: bool) -> str:  # noqa: FBT001 - vLLM's signature
        """What may be sent now."""
        return self._plain.get_next_output_text(finished, delta)

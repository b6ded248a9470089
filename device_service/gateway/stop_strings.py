"""Stop strings of a gateway's request, found in the text of its tokens.

Frontends do this themselves; a gateway leaves it to the engine. The device service
produces tokens, so they become text here, with vLLM's own incremental detokenizer,
on the event loop and for the requests that ask for it only.
"""

from __future__ import annotations

from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from device_service.submission import Submission
from ttserve.errors import invalid_field

MAX_STOP_STRINGS = 64
MAX_STOP_STRING_BYTES = 1024


class StopStrings:
    """Watches the text of one output. Event loop only."""

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        self._detokenizer = detokenizer

    @classmethod
    def of(
        cls, params: Any, submission: Submission, tokenizer: Any
    ) -> StopStrings | None:
        """For the `SamplingParams` of a gateway; None without stop strings."""
        stops = list(params.stop)
        if not stops:
            return None
        longest = max(len(text.encode()) for text in stops)
        if len(stops) > MAX_STOP_STRINGS or longest > MAX_STOP_STRING_BYTES:
            raise invalid_field(
                "stop",
                f"at most {MAX_STOP_STRINGS} stop strings of at most "
                f"{MAX_STOP_STRING_BYTES} bytes are taken",
            )
        if not all(stops):
            raise invalid_field("stop", "a stop string must not be empty")
        request = EngineCoreRequest(
            request_id=submission.request.request_id,
            prompt_token_ids=submission.request.prompt_token_ids,
            mm_features=None,
            sampling_params=SamplingParams(
                stop=stops,
                min_tokens=params.min_tokens,
                max_tokens=None,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                include_stop_str_in_output=params.include_stop_str_in_output,
            ),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        return cls(IncrementalDetokenizer.from_new_request(tokenizer, request))

    def match(self, token_ids: list[int], *, stopped: bool) -> str | None:
        """The stop string that these tokens complete.

        `stopped` says that the last one is a stop token, which is no text.
        """
        return self._detokenizer.update(token_ids, stopped)

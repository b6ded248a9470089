"""What a fake device says to a submission: decided by the submission alone.

A prompt holding `SAY<text>` gets that text and the end of the sequence (the text
reaches to the last `>`; `THOUGHT_ENDS` in it is the end of the reasoning). Any other
prompt gets the alphabet, over and over, or letters drawn from the seed where one is
set and the temperature is not zero.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.support.byte_model import END_THINK, IM_END, text_of
from ttserve.v1 import step_pb2
from ttserve.v1.generation_pb2 import Submission, TokenLogprobs

THOUGHT_ENDS = "|/think|"
ALPHABET = b"abcdefghijklmnopqrstuvwxyz"


class Reply:
    """The tokens of one request, one after the other, and how they end."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._tokens = _tokens(submission)
        self._produced = 0

    def next(self) -> tuple[int, TokenLogprobs | None, step_pb2.Finish | None]:
        """The next token, its logprobs if asked for, the finish if it is the last."""
        token = next(self._tokens)
        self._produced += 1
        return token, self._logprobs(token), self._finish(token)

    def _finish(self, token: int) -> step_pb2.Finish | None:
        stop = self._submission.stop
        if stop.HasField("eos_token_id") and token == stop.eos_token_id:
            return step_pb2.Finish(reason=step_pb2.FINISH_REASON_STOP)
        if token in stop.stop_token_ids:
            return step_pb2.Finish(
                reason=step_pb2.FINISH_REASON_STOP, stop_token_id=token
            )
        if self._produced >= stop.max_output_tokens:
            return step_pb2.Finish(reason=step_pb2.FINISH_REASON_LENGTH)
        return None

    def _logprobs(self, token: int) -> TokenLogprobs | None:
        """The chosen token at -0.5, the others -1, -2 and then impossible."""
        if not self._submission.HasField("logprobs"):
            return None
        asked = self._submission.logprobs
        count = asked.top_count
        others = list(asked.token_ids) or [(token + i) % 256 for i in range(count)]
        values = [-0.5, -1.0, -2.0, *[float("-inf")] * len(others)]
        return TokenLogprobs(
            chosen=-0.5,
            chosen_rank=1,
            top_token_ids=others,
            top_logprobs=values[: len(others)],
        )


def _tokens(submission: Submission) -> Iterator[int]:
    prompt = text_of(list(submission.prompt_token_ids))
    _, found, rest = prompt.partition("SAY<")
    if found:
        thought, thinks, answer = rest.rpartition(">")[0].partition(THOUGHT_ENDS)
        yield from thought.encode()
        if thinks:
            yield END_THINK
        yield from answer.encode()
        yield IM_END
    sampling = submission.sampling
    if sampling.temperature > 0 and sampling.HasField("seed"):
        draw = random.Random(sampling.seed)
        while True:
            yield draw.choice(ALPHABET)
    while True:
        yield from ALPHABET

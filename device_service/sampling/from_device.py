"""What the device sampled, in the words of the host's sampler (contract 2.12)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_service.mesh.interface import DeviceLogprobs
from device_service.records import Sampled, TokenLogprobs
from ttserve.errors import Reason, TTServeError

RANK_UNKNOWN = 0
"""Where the device gives the chosen token's log probability and nothing else."""


def sampled_on_device(
    tokens: npt.NDArray[np.int32],
    logprobs: DeviceLogprobs | None,
    top_logprobs: Sequence[int | None],
    vocab_size: int,
) -> Sampled:
    """Take a step's tokens, and the log probabilities of the rows that asked.

    tokens int32 [m]; `top_logprobs`, parallel to them, is how many alternatives
    each row asked for. A token that is none, which is how a device says that a
    row's logits are no numbers, is the row's own error.
    """
    token_ids: list[int] = tokens.tolist()
    errors = {
        place: TTServeError(
            Reason.STEP_FAILED,
            f"the device sampled {token_id}, which is no token: the model's logits "
            "are not finite numbers",
        )
        for place, token_id in enumerate(token_ids)
        if not 0 <= token_id < vocab_size
    }
    answers: list[TokenLogprobs | None] = [None] * len(token_ids)
    if logprobs is not None:
        for place, count in enumerate(top_logprobs):
            if count is None or place in errors:
                continue
            answer = _answer(logprobs, place, token_ids[place], count)
            if answer is None:
                errors[place] = TTServeError(
                    Reason.STEP_FAILED,
                    f"the device sampled token {token_ids[place]} from outside the "
                    "tokens that it gives log probabilities of",
                )
            answers[place] = answer
    return Sampled(token_ids, answers, errors)


def _answer(
    logprobs: DeviceLogprobs, place: int, token_id: int, count: int
) -> TokenLogprobs | None:
    """One row's, cut to what it asked for; None if the chosen token is missing.

    As on the host, a rank is the number of tokens at least as probable, but only
    among those given: the last one's may be higher.
    """
    values = logprobs.values[place]
    if logprobs.token_ids is None:
        return TokenLogprobs(float(values[0]), RANK_UNKNOWN, [], [])
    token_ids = logprobs.token_ids[place]
    found = np.flatnonzero(token_ids == token_id)
    if not len(found):
        return None
    chosen = values[found[0]]
    return TokenLogprobs(
        float(chosen),
        int((values >= chosen).sum()),
        token_ids[:count].tolist(),
        values[:count].tolist(),
    )

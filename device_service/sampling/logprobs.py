"""Log probabilities of chosen and best tokens, as vLLM's sampler gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from device_service.records import SamplingRow, TokenLogprobs
from device_service.sampling.reductions import top_columns


@dataclass(frozen=True, slots=True)
class LogprobQuestion:
    """What one row wants to know: the best `count` tokens, or named ones."""

    place: int
    count: int
    token_ids: list[int] | None


def questions(rows: Sequence[SamplingRow]) -> list[LogprobQuestion]:
    """The questions of a batch; a row that asks for nothing has none."""
    asked = []
    for place, row in enumerate(rows):
        params = row.request.sampling_params
        assert params is not None
        if params.logprob_token_ids or row.top_logprobs is not None:
            named = params.logprob_token_ids
            asked.append(LogprobQuestion(place, row.top_logprobs or 0, named))
    return asked


def answer(
    values: torch.Tensor, chosen: torch.Tensor, asked: Sequence[LogprobQuestion]
) -> list[TokenLogprobs]:
    """Answer one question per row of `values` about the token chosen there.

    values: log probabilities or logits, [len(asked), V]; overwritten. A rank is,
    as in vLLM, the number of tokens at least as probable. Rows are looked at by
    count, so that ties among the best fall as they would if the row were alone.
    """
    of_chosen = values.gather(1, chosen[:, None])
    tops = _tops(values, asked)
    # Summing floats is vectorised, and exact for any vocabulary; bools are slow.
    ranks = values.ge_(of_chosen).sum(dim=1).tolist()
    return [
        TokenLogprobs(value, int(rank), *tops[place])
        for place, (value, rank) in enumerate(
            zip(of_chosen[:, 0].tolist(), ranks, strict=True)
        )
    ]


def _tops(
    values: torch.Tensor, asked: Sequence[LogprobQuestion]
) -> dict[int, tuple[list[int], list[float]]]:
    tops: dict[int, tuple[list[int], list[float]]] = {}
    by_count: dict[int, list[int]] = {}
    for place, question in enumerate(asked):
        if question.token_ids is not None:
            named = values[place, question.token_ids].tolist()
            tops[place] = (list(question.token_ids), named)
        elif question.count == 0:
            tops[place] = ([], [])
        else:
            by_count.setdefault(question.count, []).append(place)
    for count, places in by_count.items():
        some = values if len(places) == len(values) else values[places]
        best, token_ids = top_columns(some, min(count, values.shape[1]))
        lists = zip(token_ids.tolist(), best.tolist(), strict=True)
        tops.update(zip(places, lists, strict=True))
    return tops

"""The device's sampler of the `cpu` and the `sim` mesh.

It is made of the same parts as host sampling and draws seeded rows by the same
position-keyed noise, so a request says the same wherever it is sampled. Only the
mesh's worker uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import xgrammar
from vllm.model_executor.layers.utils import apply_penalties

from device_service.models.contract import TTSamplingParams
from device_service.sampling.batch import Batch
from device_service.sampling.choosing import Chooser
from device_service.sampling.draws import Draws
from device_service.sampling.processors import RowGrid
from device_service.sampling.recipe import GREEDY_BELOW, Cut
from device_service.sampling.reductions import top_columns

NO_TOKEN = -1
"""The token of a row that has none: its logits are not finite numbers."""

TOP_LOGPROBS = 32
"""Log probabilities per row where some row asks for the best ones."""

Tokens = npt.NDArray[np.int64]
LogprobPayload = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class _Row:
    """Whose chance a row draws from; its position moves on with every step."""

    row: int
    seed: int | None
    position: int = 0
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """Tokens of penalised rows: int32 [rows, L], padded with -1."""

    prompt_tokens: torch.Tensor
    output_tokens: torch.Tensor

    def padded_with(self, pad: int, rows: list[int]) -> tuple[torch.Tensor, ...]:
        """Both as int64 for these rows, padded as vLLM's penalties want them."""
        return tuple(
            tokens[rows].long().masked_fill_(tokens[rows] < 0, pad)
            for tokens in (self.prompt_tokens, self.output_tokens)
        )


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """tokens int64 [B], 0 where a row has no request and NO_TOKEN where it has no
    token. logprobs, if a row asked: [B], or ([B, 32], [B, 32]), best first.
    """

    tokens: Tokens
    logprobs: LogprobPayload | None


class Program:
    """Sampling parameters, taken over from the host once and used for many steps."""

    def __init__(self, params: TTSamplingParams, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.rows = [_Row(row, seed) for row, seed in enumerate(params.seed)]
        self.cuts = [
            _cut(*knobs, vocab_size=vocab_size)
            for knobs in zip(
                params.temperature, params.top_k, params.top_p, strict=True
            )
        ]
        penalties = zip(
            params.presence_penalty,
            params.frequency_penalty,
            params.repetition_penalty,
            strict=True,
        )
        self._penalties = torch.tensor(list(penalties), dtype=torch.float32)
        neutral = torch.tensor([0.0, 0.0, 1.0])
        self._penalised = (self._penalties != neutral).any(dim=1).tolist()
        self.wants_logprobs = any(params.enable_log_probs)
        self.wants_top = any(count > 0 for count in params.num_logprobs)

    def __len__(self) -> int:
        return len(self.rows)

    def penalise(
        self, logits: torch.Tensor, rows: list[int], history: History | None
    ) -> None:
        """Apply the penalties of some rows, in place; logits are parallel to them."""
        places = [place for place, row in enumerate(rows) if self._penalised[row]]
        if not places:
            return
        if history is None:
            raise ValueError("a row has a penalty, but the step brings no tokens")
        wanted = [rows[place] for place in places]
        prompts, outputs = history.padded_with(self._vocab_size, wanted)
        presence, frequency, repetition = self._penalties[wanted].unbind(dim=1)
        logits[places] = apply_penalties(
            logits[places], prompts, outputs, presence, frequency, repetition
        )


class DeviceSampler:
    """Chooses a token for each row that has a request."""

    def __init__(self, vocab_size: int) -> None:
        draws = Draws(vocab_size, position_keyed=True)
        self._chooser = Chooser(draws, RowGrid((), 0, vocab_size))

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        program: Program,
        positions: npt.NDArray[np.int64],
        history: History | None = None,
        bitmask: torch.Tensor | None = None,
    ) -> SampledTokens:
        """One token per row with a request.

        logits float32 [B, V], may be written to. positions [B]: of the tokens to
        be chosen, negative without a request. bitmask int32 [B, ceil(V / 32)].
        """
        if len(program) != len(logits):
            raise ValueError(
                f"sampling parameters of {len(program)} rows for {len(logits)} rows"
            )
        rows = np.flatnonzero(positions >= 0).tolist()
        tokens = np.zeros(len(logits), dtype=np.int64)
        if not rows:
            return SampledTokens(tokens, None)
        part = logits if len(rows) == len(logits) else logits[rows]
        if bitmask is not None:
            xgrammar.apply_token_bitmask_inplace(part, bitmask[rows].contiguous())
        raw = part.log_softmax(dim=1) if program.wants_logprobs else None
        program.penalise(part, rows, history)
        picked = self._chooser.choose(_batch(part, program, rows, positions))
        chosen = picked.columns.masked_fill(~picked.sound, NO_TOKEN)
        tokens[rows] = chosen.numpy()
        if raw is None:
            return SampledTokens(tokens, None)
        found = _logprobs(raw, chosen.clamp(min=0), top=program.wants_top)
        return SampledTokens(tokens, _spread(found, rows, len(logits)))


def _batch(
    logits: torch.Tensor,
    program: Program,
    rows: Sequence[int],
    positions: npt.NDArray[np.int64],
) -> Batch[_Row, Cut]:
    drawn = [program.rows[row] for row in rows]
    for row in drawn:
        if row.seed is not None:
            row.position = int(positions[row.row])
    return Batch(logits, drawn, [program.cuts[row] for row in rows])


def _cut(temperature: float, top_k: int, top_p: float, *, vocab_size: int) -> Cut:
    return Cut(
        temperature=temperature,
        greedy=temperature < GREEDY_BELOW or top_k == 1,
        top_k=top_k,
        top_p=top_p,
        min_p=0.0,
        cuts=top_k < vocab_size or top_p < 1.0,
    )


def _logprobs(raw: torch.Tensor, chosen: torch.Tensor, *, top: bool) -> LogprobPayload:
    """Of the chosen tokens, or the best ones with the chosen among them.

    A chosen token that is not among the best takes the last one's place.
    """
    of_chosen = raw.gather(1, chosen[:, None])
    if not top:
        return of_chosen[:, 0]
    values, token_ids = top_columns(raw, min(TOP_LOGPROBS, raw.shape[1]))
    missing = ~(token_ids == chosen[:, None]).any(dim=1)
    values[:, -1] = torch.where(missing, of_chosen[:, 0], values[:, -1])
    token_ids[:, -1] = torch.where(missing, chosen, token_ids[:, -1])
    return values, token_ids


def _spread(found: LogprobPayload, rows: list[int], count: int) -> LogprobPayload:
    """From the rows that have a request to all rows, in ordinary memory."""
    with torch.inference_mode(mode=False):
        if isinstance(found, torch.Tensor):
            return _scatter(found, rows, count)
        return _scatter(found[0], rows, count), _scatter(found[1], rows, count)


def _scatter(found: torch.Tensor, rows: list[int], count: int) -> torch.Tensor:
    spread = torch.zeros((count, *found.shape[1:]), dtype=found.dtype)
    spread[rows] = found
    return spread

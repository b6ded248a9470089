"""Host sampling: one token per row that emits, each row as if it were alone.

What a row needs decides its path, and only its own parameters do:

    grammar mask             first, every row
    raw log probabilities    rows that asked, before anything else changes logits
    constraints              rows that have any: vLLM's sampler (constraints.py)
    a token                  the best one, or a draw from a short list of the
                             best, or from the whole vocabulary (choosing.py)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xgrammar
from vllm.config import VllmConfig

from device_service.records import Sampled, SamplingRow, TokenLogprobs
from device_service.sampling.batch import Batch
from device_service.sampling.choosing import Chooser
from device_service.sampling.constraints import Constraints, HostBatch
from device_service.sampling.draws import Draws, Picked
from device_service.sampling.logprobs import LogprobQuestion, answer, questions
from device_service.sampling.recipe import Recipes
from device_service.sampling.reductions import SHORT, first_max, first_max_narrow
from ttserve.errors import Reason, TTServeError


class HostSampler:
    """Implements `TokenSampler`. Engine thread."""

    def __init__(
        self,
        config: VllmConfig,
        vocab_size: int,
        total_rows: int,
        *,
        position_keyed_seeds: bool,
    ) -> None:
        self._mode = config.model_config.logprobs_mode
        self._recipes = Recipes(vocab_size)
        self._constraints = Constraints(config, vocab_size, total_rows)
        self._draws = Draws(vocab_size, position_keyed=position_keyed_seeds)
        self._chooser = Chooser(self._draws, self._constraints.grid)

    @property
    def serves_thinking_budget(self) -> bool:
        """Whether a request may have a thinking budget; else admission refuses."""
        return self._constraints.thinking.served

    @property
    def has_custom_processors(self) -> bool:
        """Whether logits processors are configured, which only the host runs."""
        return self._constraints.grid.active

    @property
    def held(self) -> int:
        """Things held for live requests: zero when there are none."""
        return len(self._recipes) + self._draws.generators + self._constraints.held

    def release(self, request_id: str) -> None:
        """Forget a request's sampling state; unknown ids are ignored."""
        self._recipes.forget(request_id)
        self._draws.forget(request_id)
        self._constraints.forget(request_id)

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingRow],
        bitmask: np.ndarray | None,
    ) -> Sampled:
        """Choose one token per row; see `TokenSampler`."""
        if not rows:
            return Sampled([], [])
        batch = Batch(logits, rows, [self._recipes.of(row.request) for row in rows])
        if bitmask is not None:
            xgrammar.apply_token_bitmask_inplace(logits, torch.from_numpy(bitmask))
        asked = questions(rows)
        asking = [question.place for question in asked]
        report = None
        if asked and self._mode in ("raw_logprobs", "raw_logits"):
            report = self._reported(batch.part(asking).logits)
        self._constraints.apply(batch)
        if asked and report is None:
            picked, drawn_from = self._chooser.choose_and_show(batch, asking)
            report = self._reported(drawn_from)
        else:
            picked = self._chooser.choose(batch)
        errors = _errors(batch, picked, masked=bitmask is not None)
        return Sampled(
            picked.columns.tolist(),
            _logprobs(report, picked, asked, errors),
            errors,
        )

    def best(self, logits: torch.Tensor) -> Sampled | None:
        """The best token of every row; see `TokenSampler`."""
        if self._constraints.grid.active:
            return None
        narrow = logits.shape[1] <= SHORT
        values, columns = first_max_narrow(logits) if narrow else _best(logits)
        if not np.isfinite(values).all():
            return None
        return Sampled(columns.tolist(), [None] * len(columns))

    def _reported(self, logits: torch.Tensor) -> torch.Tensor:
        """What is shown of logits, in memory of its own."""
        if self._mode in ("raw_logprobs", "processed_logprobs"):
            return logits.log_softmax(dim=1)
        return logits.clone()


@torch.inference_mode()
def _best(logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    values, columns = first_max(logits)
    return values.numpy(), columns.numpy()


def _logprobs(
    report: torch.Tensor | None,
    picked: Picked,
    asked: Sequence[LogprobQuestion],
    errors: dict[int, TTServeError],
) -> list[TokenLogprobs | None]:
    """Answers at the places that asked; `report` is theirs."""
    replies: list[TokenLogprobs | None] = [None] * len(picked.columns)
    if report is None:
        return replies
    chosen = picked.columns[[question.place for question in asked]]
    for question, reply in zip(asked, answer(report, chosen, asked), strict=True):
        if question.place not in errors:
            replies[question.place] = reply
    return replies


def _errors(
    batch: HostBatch, picked: Picked, *, masked: bool
) -> dict[int, TTServeError]:
    """Why rows have no token, by place."""
    if bool(picked.sound.all()):
        return {}
    failed = (~picked.sound).nonzero()[:, 0].tolist()
    return {place: _error(batch, place, masked=masked) for place in failed}


def _error(batch: HostBatch, place: int, *, masked: bool) -> TTServeError:
    row = batch.logits[place]
    if bool((row.isnan() | (row == torch.inf)).any()):
        return TTServeError(
            Reason.STEP_FAILED, "the model's logits are not finite numbers"
        )
    if masked and batch.rows[place].request.use_structured_output:
        return TTServeError(Reason.GRAMMAR, "the grammar allows no token here")
    return TTServeError(
        Reason.INVALID_FIELD, "the request's own constraints forbid every token"
    )

"""What came back from an adapter, as the results of a step (contract 1.7 to 1.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from device_service.mesh.interface import DeviceLogprobs, StepResult


@dataclass(frozen=True, slots=True)
class Results:
    """Either logits float32 [m, V], or tokens int32 [m] and maybe log probabilities."""

    logits: torch.Tensor | None = None
    tokens: npt.NDArray[np.int32] | None = None
    logprobs: DeviceLogprobs | None = None

    def of_step(self, began: float, ended: float) -> StepResult:
        """With the time that the mesh worked, `time.monotonic()`."""
        return StepResult(self.logits, began, ended, self.tokens, self.logprobs)


Reader = Callable[[Any], Results]
"""Turns an adapter's host output into results; runs once per step."""


def reads_logits(rows: Sequence[int] | None) -> Reader:
    """For host sampling. `rows` are gathered; None where the adapter has done so."""

    def read(output: Any) -> Results:
        logits = _last_position(output)
        return Results(logits if rows is None else logits[list(rows)])

    return read


def reads_compact_logits(rows: Sequence[int]) -> Reader:
    """For logits of exactly these rows, in this order."""

    def read(output: Any) -> Results:
        logits = _last_position(output)
        if len(logits) != len(rows):
            raise ValueError(
                f"the adapter answered {len(logits)} rows where {len(rows)} were "
                "asked for with sample_rows"
            )
        return Results(logits)

    return read


def reads_tokens(rows: Sequence[int] | None, *, logprobs: bool) -> Reader:
    """For device sampling. `logprobs`: whether some row asked for them."""

    def read(output: Any) -> Results:
        if not logprobs:
            tokens = output[0] if isinstance(output, tuple) else output
            return Results(tokens=_some(_tokens(tokens), rows))
        if not isinstance(output, tuple) or len(output) != 2:
            raise TypeError(
                "an adapter that samples for rows with enable_log_probs must answer "
                f"(tokens, logprobs), not {type(output).__name__}"
            )
        tokens, payload = output
        return Results(
            tokens=_some(_tokens(tokens), rows), logprobs=_logprobs(payload, rows)
        )

    return read


def _last_position(output: Any) -> torch.Tensor:
    """Logits of each row's last position, from what the contract may answer."""
    logits: torch.Tensor = output[0] if isinstance(output, tuple) else output
    if logits.dim() == 3:
        logits = logits[:, -1, :]
    return logits.float()


def _tokens(output: torch.Tensor) -> npt.NDArray[np.int32]:
    return output.reshape(-1).to(torch.int32).numpy()


def _logprobs(payload: Any, rows: Sequence[int] | None) -> DeviceLogprobs:
    """One value per row, or the best 32 with their ids."""
    if isinstance(payload, tuple | list):
        values, token_ids = payload
        return DeviceLogprobs(
            _some(values.float().numpy(), rows),
            _some(token_ids.to(torch.int32).numpy(), rows),
        )
    return DeviceLogprobs(_some(payload.float().reshape(-1, 1).numpy(), rows), None)


def _some(array: npt.NDArray[Any], rows: Sequence[int] | None) -> npt.NDArray[Any]:
    return array if rows is None else array[list(rows)]

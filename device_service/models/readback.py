"""Compact readback: the rows that are wanted, in the order they are wanted."""

from __future__ import annotations

import torch


def take_rows(logits: torch.Tensor, rows: list[int] | None) -> torch.Tensor:
    """Rows of a tensor that was made for one step; None means all of them.

    The first rows in order, the usual case, need no copy.
    """
    if rows is None:
        return logits
    if rows == list(range(len(rows))):
        return logits[: len(rows)]
    return logits[rows]

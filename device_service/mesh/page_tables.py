"""Page tables of models with several KV groups, as the contract hands them over."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.mesh.placement import Placement


def per_layer(step: PrefillInput | DecodeInput, placement: Placement) -> dict[str, Any]:
    """`page_tables_per_layer`, always at the shape of warm-up (contract 2.20).

    Empty for models with one group, which need no more than `page_table`.
    """
    if step.more_tables is None:
        return {}
    tables = torch.cat([step.page_table[None], step.more_tables])
    below = placement.rows - tables.shape[1]
    padded = torch.nn.functional.pad(tables, (0, 0, 0, below))
    return {
        "page_tables_per_layer": [padded[group] for group in placement.layer_groups]
    }


def all_groups(step: DecodeInput) -> npt.NDArray[np.int32]:
    """The tables of all groups below each other: a change in any is a change."""
    table: npt.NDArray[np.int32] = step.page_table.numpy()
    if step.more_tables is None:
        return table
    return np.concatenate([table, *step.more_tables.numpy()])

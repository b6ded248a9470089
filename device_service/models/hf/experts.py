"""Mixture of experts, so that rows of a decode batch do not touch each other.

transformers' default groups tokens by expert and multiplies group by group, so
the size of a product, and with it the last bits of a row, depend on where the
other rows were routed. In decode every token has products of its own instead.
A prefill has one prompt only, and grouping, which copies no weights, serves it.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface

from device_service.models.hf.step import current_step

EXPERTS_NAME = "ttserve_steady"


def register_steady_experts() -> None:
    """Make the name known to transformers; any number of times."""
    ExpertsInterface.register(EXPERTS_NAME, steady_experts)


def steady_experts(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The experts' forward: batched when rows share the step, else grouped."""
    shared = current_step().positions.shape[0] > 1
    forward = ALL_EXPERTS_FUNCTIONS["batched_mm" if shared else "grouped_mm"]
    output: torch.Tensor = forward(module, *args, **kwargs)
    return output

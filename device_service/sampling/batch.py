"""The rows of one sampling call, and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from device_service.records import SamplingRow
from device_service.sampling.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one call, parallel. The logits may be written to."""

    logits: torch.Tensor
    rows: Sequence[SamplingRow]
    recipes: Sequence[Recipe]

    def part(self, places: Sequence[int]) -> Batch:
        """Some of the rows; their logits are a copy unless they are all."""
        if len(places) == len(self.rows):
            return self
        return Batch(
            self.logits[list(places)],
            [self.rows[i] for i in places],
            [self.recipes[i] for i in places],
        )

    def scaled(self) -> torch.Tensor:
        """The logits divided by temperature, in place."""
        temperatures = [recipe.temperature for recipe in self.recipes]
        if any(temperature != 1.0 for temperature in temperatures):
            self.logits.div_(torch.tensor(temperatures)[:, None])
        return self.logits

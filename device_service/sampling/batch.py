"""The rows of one sampling call, and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from device_service.sampling.recipe import Cut


class DrawnRow(Protocol):
    """Where a row's chance comes from.

    `row` is its place in the merged batch. With a `seed` the draw is that of
    the `position` of the token to be chosen; `request_id` names the generator
    where seeded draws are not keyed by position.
    """

    @property
    def row(self) -> int: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def position(self) -> int: ...

    @property
    def request_id(self) -> str: ...


RowT = TypeVar("RowT", bound=DrawnRow, covariant=True)
CutT = TypeVar("CutT", bound=Cut, covariant=True)


@dataclass(frozen=True, slots=True)
class Batch(Generic[RowT, CutT]):
    """The rows of one call, parallel. The logits may be written to."""

    logits: torch.Tensor
    rows: Sequence[RowT]
    recipes: Sequence[CutT]

    def part(self, places: Sequence[int]) -> Batch[RowT, CutT]:
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

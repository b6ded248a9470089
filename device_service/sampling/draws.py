"""Choosing one token per row from logits that are ready for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from device_service.sampling.batch import DrawnRow
from device_service.sampling.position_draw import gumbel_noise, row_keys
from device_service.sampling.reductions import first_max, invert

# Scores of seeded rows that are held at once.
_SCORES = 400_000


@dataclass(frozen=True, slots=True)
class Picked:
    """Columns chosen, int64 [rows]; `sound` is False where a row has no token.

    A row is unsound when everything in it is forbidden or it is not finite.
    """

    columns: torch.Tensor
    sound: torch.Tensor

    @classmethod
    def none(cls, rows: int) -> Picked:
        """Room for `rows` choices, none made."""
        return cls(
            torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.bool)
        )

    def put(self, places: Sequence[int], some: Picked) -> None:
        """Enter the choices of some rows."""
        self.columns[list(places)] = some.columns
        self.sound[list(places)] = some.sound


def pick_best(logits: torch.Tensor) -> Picked:
    """The best token of each row, the first one where several are equal."""
    values, columns = first_max(logits)
    return Picked(columns, values.isfinite())


class Draws:
    """Random choices, each row with its own source of chance. Engine thread.

    Unseeded rows use entropy of the process. Seeded rows use either the
    position-keyed noise or a torch generator each, which advances once for
    every token the request emits. All sources choose with softmax probability.
    """

    def __init__(self, vocab_size: int, *, position_keyed: bool) -> None:
        self._position_keyed = position_keyed
        self._all_ids = np.arange(vocab_size, dtype=np.uint32)[None, :]
        # Kept, because fresh memory of this size costs more than what fills it.
        at_once = max(1, _SCORES // vocab_size)
        self._scores = torch.empty(at_once, vocab_size, dtype=torch.float64)
        self._weights = torch.empty(0, vocab_size)
        self._entropy = np.random.default_rng()
        self._generators: dict[str, torch.Generator] = {}

    @property
    def generators(self) -> int:
        """Generators held for live requests."""
        return len(self._generators)

    def forget(self, request_id: str) -> None:
        """Drop a request's generator; unknown ids are ignored."""
        self._generators.pop(request_id, None)

    def pick(
        self,
        values: torch.Tensor,
        token_ids: torch.Tensor | None,
        rows: Sequence[DrawnRow],
    ) -> Picked:
        """Draw a column of each row of scaled logits, -inf where forbidden.

        `token_ids` says which token each column is; None if column is token.
        """
        seeded = [i for i, row in enumerate(rows) if row.seed is not None]
        fresh = [i for i, row in enumerate(rows) if row.seed is None]
        if not seeded:
            return self._draw_fresh(values)
        draw = self._draw_keyed if self._position_keyed else self._draw_generated
        ids = None if token_ids is None else token_ids[seeded]
        picked = Picked.none(len(rows))
        picked.put(seeded, draw(values[seeded], ids, [rows[i] for i in seeded]))
        if fresh:
            picked.put(fresh, self._draw_fresh(values[fresh]))
        return picked

    def _draw_fresh(self, values: torch.Tensor) -> Picked:
        weights = self._softmax(values)
        uniforms = torch.from_numpy(self._entropy.random(len(values)))
        columns = invert(weights, uniforms)
        # A NaN anywhere in the row makes every weight NaN.
        return Picked(columns, weights.gather(1, columns[:, None])[:, 0] > 0)

    def _draw_keyed(
        self,
        values: torch.Tensor,
        token_ids: torch.Tensor | None,
        rows: Sequence[DrawnRow],
    ) -> Picked:
        keys = row_keys(
            [_given_seed(row) for row in rows], [row.position for row in rows]
        )
        if token_ids is not None:
            ids = token_ids.to(torch.int32).numpy().view(np.uint32)
            return pick_best(gumbel_noise(keys, ids).add_(values))
        picked = Picked.none(len(rows))
        for begin in range(0, len(rows), len(self._scores)):
            some = range(len(rows))[begin : begin + len(self._scores)]
            scores = self._scores[: len(some)]
            gumbel_noise(keys[some], self._all_ids, out=scores)
            picked.put(some, pick_best(scores.add_(values[some])))
        return picked

    def _draw_generated(
        self,
        values: torch.Tensor,
        _: torch.Tensor | None,
        rows: Sequence[DrawnRow],
    ) -> Picked:
        weights = self._softmax(values)
        picked = Picked.none(len(rows))
        for i, row in enumerate(rows):
            noise = torch.empty_like(weights[i : i + 1])
            noise.exponential_(generator=self._generator(row))
            best, columns = first_max(weights[i : i + 1] / noise)
            picked.put([i], Picked(columns, best > 0))
        return picked

    def _generator(self, row: DrawnRow) -> torch.Generator:
        generator = self._generators.get(row.request_id)
        if generator is None:
            generator = torch.Generator().manual_seed(_given_seed(row))
            self._generators[row.request_id] = generator
        return generator

    def _softmax(self, values: torch.Tensor) -> torch.Tensor:
        """Probabilities, valid until the next call."""
        rows, columns = values.shape
        if columns != self._weights.shape[1]:
            return values.softmax(dim=1)
        if rows > len(self._weights):
            self._weights = torch.empty_like(values)
        return torch.softmax(values, dim=1, out=self._weights[:rows])


def _given_seed(row: DrawnRow) -> int:
    """The seed of a row that has one."""
    assert row.seed is not None
    return row.seed

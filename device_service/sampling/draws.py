"""Choosing one token per row from logits that are ready for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from device_service.records import SamplingRow
from device_service.sampling.position_draw import gumbel_noise, row_keys
from device_service.sampling.reductions import first_max, invert


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
        rows: Sequence[SamplingRow],
    ) -> Picked:
        """Draw a column of each row of scaled logits, -inf where forbidden.

        `token_ids` says which token each column is; None if column is token.
        """
        seeded = [i for i, row in enumerate(rows) if _seed(row) is not None]
        if not seeded:
            return self._draw_fresh(values)
        draw = self._draw_keyed if self._position_keyed else self._draw_generated
        picked = Picked.none(len(rows))
        for i in seeded:
            ids = None if token_ids is None else token_ids[i : i + 1]
            picked.put([i], draw(values[i : i + 1], ids, rows[i]))
        fresh = [i for i, row in enumerate(rows) if _seed(row) is None]
        if fresh:
            picked.put(fresh, self._draw_fresh(values[fresh]))
        return picked

    def _draw_fresh(self, values: torch.Tensor) -> Picked:
        weights = values.softmax(dim=1)
        uniforms = torch.from_numpy(self._entropy.random(len(values)))
        columns = invert(weights, uniforms)
        # A NaN anywhere in the row makes every weight NaN.
        return Picked(columns, weights.gather(1, columns[:, None])[:, 0] > 0)

    def _draw_keyed(
        self, values: torch.Tensor, token_ids: torch.Tensor | None, row: SamplingRow
    ) -> Picked:
        seed = _seed(row)
        assert seed is not None
        if token_ids is None:
            ids = self._all_ids
        else:
            ids = token_ids.to(torch.int32).numpy().view(np.uint32)
        return pick_best(values + gumbel_noise(row_keys([seed], [row.position]), ids))

    def _draw_generated(
        self, values: torch.Tensor, token_ids: torch.Tensor | None, row: SamplingRow
    ) -> Picked:
        generator = self._generators.get(row.request.request_id)
        if generator is None:
            seed = _seed(row)
            assert seed is not None
            generator = torch.Generator().manual_seed(seed)
            self._generators[row.request.request_id] = generator
        weights = values.softmax(dim=1)
        noise = torch.empty_like(weights).exponential_(generator=generator)
        best, columns = first_max(weights / noise)
        return Picked(columns, best > 0)


def _seed(row: SamplingRow) -> int | None:
    params = row.request.sampling_params
    assert params is not None
    return params.seed

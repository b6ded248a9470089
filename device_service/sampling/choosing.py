"""A token for each row, from logits to which all constraints were applied.

vLLM's sampler would choose as well. Its noise for a whole vocabulary costs some
twenty times what inverting the distribution function does, and so does its full
sort for top_p against a look at the best few hundred tokens; so its own function
serves only the rows that those few hundred cannot decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_service.sampling.batch import Batch, DrawnRow
from device_service.sampling.cutting import (
    WIDTHS,
    Shortlist,
    cut_min_p,
    cut_sorted,
    cut_whole,
    shortlist,
)
from device_service.sampling.draws import Draws, Picked, pick_best
from device_service.sampling.processors import RowGrid
from device_service.sampling.recipe import Cut, Knobs

AnyBatch = Batch[DrawnRow, Cut]


class Chooser:
    """Chooses tokens. Engine thread."""

    def __init__(self, draws: Draws, grid: RowGrid) -> None:
        self._draws = draws
        self._grid = grid

    def choose(self, batch: AnyBatch) -> Picked:
        """Choose at the least cost."""
        if self._grid.changes_draws:
            return self.choose_and_show(batch, ())[0]
        picked = Picked.none(len(batch.rows))
        greedy, cut, free = _by_need(batch.recipes)
        if greedy:
            picked.put(greedy, pick_best(batch.part(greedy).logits))
        if cut:
            picked.put(cut, self._choose_cut(batch.part(cut)))
        if free:
            part = batch.part(free)
            picked.put(free, self._draws.pick(part.scaled(), None, part.rows))
        return picked

    def choose_and_show(
        self, batch: AnyBatch, shown: Sequence[int]
    ) -> tuple[Picked, torch.Tensor]:
        """Choose, and return the logits from which the `shown` rows were drawn.

        These rows go over the whole vocabulary, and so do all rows where a
        configured processor wants to see them before top_k and top_p.
        """
        everyone = range(len(batch.rows))
        wide = list(everyone if self._grid.changes_draws else shown)
        rest = [place for place in everyone if place not in set(wide)]
        picked = Picked.none(len(batch.rows))
        if rest:
            picked.put(rest, self.choose(batch.part(rest)))
        part = batch.part(wide)
        self._scale_and_cut(part)
        greedy = [i for i, recipe in enumerate(part.recipes) if recipe.greedy]
        drawn = [i for i, recipe in enumerate(part.recipes) if not recipe.greedy]
        if greedy:
            best = pick_best(part.part(greedy).logits)
            picked.put([wide[i] for i in greedy], best)
        if drawn:
            some = part.part(drawn)
            token = self._draws.pick(some.logits, None, some.rows)
            picked.put([wide[i] for i in drawn], token)
        return picked, part.logits[[wide.index(place) for place in shown]]

    def _choose_cut(self, batch: AnyBatch) -> Picked:
        """Draw from short lists where they decide, else from the vocabulary."""
        picked = Picked.none(len(batch.rows))
        left = list(range(len(batch.rows)))
        for width in WIDTHS:
            part = batch.part(left)
            best = shortlist(part.logits, Knobs.of(part.recipes), width)
            if best.decided:
                rows = [part.rows[i] for i in best.decided]
                token = self._draw_listed(best, rows)
                picked.put([left[i] for i in best.decided], token)
            left = [left[i] for i in best.undecided]
            if not left:
                return picked
        part = batch.part(left)
        wide = cut_whole(part.scaled(), Knobs.of(part.recipes))
        picked.put(left, self._draws.pick(wide, None, part.rows))
        return picked

    def _draw_listed(self, best: Shortlist, rows: Sequence[DrawnRow]) -> Picked:
        place = self._draws.pick(best.values, best.token_ids, rows)
        tokens = best.token_ids.gather(1, place.columns[:, None])[:, 0]
        return Picked(tokens, place.sound)

    def _scale_and_cut(self, part: AnyBatch) -> None:
        """Bring rows with a temperature to what is drawn from, in place."""
        hot = [i for i, recipe in enumerate(part.recipes) if recipe.scales]
        if not hot:
            return
        some = part.part(hot)
        scaled, knobs = some.scaled(), Knobs.of(some.recipes)
        cut_min_p(scaled, knobs.min_p)
        scaled = self._grid.apply_random_only(scaled, some.rows)
        ready = cut_sorted(scaled, knobs)
        if ready is not part.logits:
            part.logits[hot] = ready


def _by_need(recipes: Sequence[Cut]) -> tuple[list[int], list[int], list[int]]:
    """Places of rows that take the best token, that are cut, and of the others."""
    greedy: list[int] = []
    cut: list[int] = []
    free: list[int] = []
    for place, recipe in enumerate(recipes):
        if recipe.greedy:
            greedy.append(place)
        elif recipe.cuts:
            cut.append(place)
        else:
            free.append(place)
    return greedy, cut, free

"""Which device service gets a request: one rule, without state.

Among those whose load is near the least, the one that has most of the prompt's
beginning in its prefix cache; among equals the least loaded; among equals the
one whose turn is longest ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS_PER_MARGIN = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device service that takes requests now.

    `load` is how many requests run or wait there, `shared_blocks` how many of the
    prompt's leading blocks went there before, `last_turn` grows from one choice to
    the next and is 0 before the first.
    """

    name: str
    load: int
    shared_blocks: int = 0
    last_turn: int = 0


def load_margin(rows: int) -> int:
    """How much more load a shared prefix is worth, in requests: at least 1.

    A quarter of the rows of one device service: what it costs there is little, since
    a decode step takes all rows at once, and a prefill saved is a step saved for all.
    """
    return max(1, rows // ROWS_PER_MARGIN)


def choose(candidates: Sequence[Candidate], margin: int) -> Candidate:
    """The one that gets the request; there must be one at least.

    One that has `margin` requests more than the least loaded is not near it.
    """
    least = min(candidate.load for candidate in candidates)
    return min(
        (candidate for candidate in candidates if candidate.load < least + margin),
        key=lambda near: (-near.shared_blocks, near.load, near.last_turn),
    )

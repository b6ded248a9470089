"""What stands for traces on the `cpu` mesh: decodes at few, fixed shapes.

A shape is (rows, columns of the page table that are used). With tracing, a
decode runs at the smallest shape that covers it, and every shape has been met
in warm-up; without, it uses exactly the columns it needs.

Nothing is compiled, so what the first run of a shape costs more is what a
bucket's matrix products and a width's buffers set up, each on its own.
Warm-up therefore runs every bucket and every width once, not all their pairs.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

from device_service.models.buckets import half_steps, smallest_covering

logger = logging.getLogger(__name__)


class DecodeShapes:
    """The shapes that were met in warm-up, and a count of those that were not."""

    def __init__(self) -> None:
        self._captured: set[tuple[int, int]] = set()
        self.unwarmed = 0

    def capture(self, buckets: Iterable[int], columns: int) -> None:
        """Warm-up has run these numbers of rows, and all widths up to `columns`."""
        self._captured |= set(itertools.product(buckets, half_steps(columns)))

    def columns(self, rows: int, need: int, most: int, *, replay: bool) -> int:
        """Columns that a decode of `rows` uses, of a page table of `most`.

        `need` is what its longest row needs. `replay` is `enable_trace`. A shape
        that was not warmed up is counted and logged, once.
        """
        if not replay:
            return need
        columns = smallest_covering(half_steps(most), need)
        if (rows, columns) not in self._captured:
            self._captured.add((rows, columns))
            self.unwarmed += 1
            logger.warning(
                "a decode of %d rows by %d blocks was not warmed up; "
                "%d such shapes so far",
                rows,
                columns,
                self.unwarmed,
            )
        return columns

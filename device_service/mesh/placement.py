"""How requests lie on the mesh, and which of its calls may replay traces."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class TraceMode(enum.Enum):
    """Which calls may replay captured traces (contract 1.6).

    On `cpu` a trace is a forward at a fixed shape; `sim` has none.
    """

    ALL = "all"
    DECODE_ONLY = "decode_only"
    NONE = "none"

    @property
    def prefill(self) -> bool:
        """`enable_trace` of prefill calls."""
        return self is TraceMode.ALL

    @property
    def decode(self) -> bool:
        """`enable_trace` of decode calls."""
        return self is not TraceMode.NONE


@dataclass(frozen=True, slots=True)
class Placement:
    """How requests lie on the mesh: merged row = lane * rows_per_lane + local row.

    `layer_groups` is the KV group of each layer, empty where there is one group.
    """

    lanes: int
    rows_per_lane: int
    page_table_width: int
    trace_mode: TraceMode
    layer_groups: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of all lanes."""
        return self.lanes * self.rows_per_lane

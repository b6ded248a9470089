"""What the engine hands to the adapter: chunks, page tables, slots and their release.

The adapter is the simulated one, with a note of every call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from device_service.models.sim_adapter import SimAdapter
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.rig import Rig

RigMaker = Callable[..., Rig]


@dataclass
class Calls:
    """Forwards and releases, in their order, with copies of what was handed over."""

    made: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def note(self, name: str, **arguments: Any) -> None:
        copies = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in arguments.items()
        }
        self.made.append((name, copies))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [arguments for called, arguments in self.made if called == name]


def noting(calls: Calls) -> type[SimAdapter]:
    """An adapter class that writes its calls down."""

    class Noting(SimAdapter):
        def prefill_forward(self, **arguments: Any) -> Any:
            calls.note("prefill", **arguments)
            return super().prefill_forward(**arguments)

        def decode_forward(self, **arguments: Any) -> Any:
            calls.note("decode", **arguments)
            return super().decode_forward(**arguments)

        def release_request(self, slot: int) -> None:
            calls.note("release", slot=slot)

    return Noting


def ints(values: Any) -> list[int]:
    return [int(value) for value in np.asarray(values)]


@pytest.mark.feature(57, 76)
def test_a_chunk_says_where_it_ends_and_what_came_before(make_rig: RigMaker) -> None:
    calls = Calls()
    rig = make_rig(adapter=noting(calls), max_num_batched_tokens=32)
    prompt = list(range(1, 101))
    rig.generate(prompt, 2)
    chunks = calls.named("prefill")
    assert [ints(chunk["start_pos"]) for chunk in chunks] == [[0], [32], [64], [96]]
    assert [ints(chunk["prompt_lens"]) for chunk in chunks] == [[32], [64], [96], [100]]
    for chunk, (start, end) in zip(
        chunks, [(0, 32), (32, 64), (64, 96), (96, 100)], strict=True
    ):
        assert ints(chunk["tokens"][0, start:end]) == prompt[start:end]
    rig.generate(prompt, 2)  # six blocks of 16 are cached now
    [rest] = calls.named("prefill")[4:]
    assert (ints(rest["start_pos"]), ints(rest["prompt_lens"])) == ([96], [100])


@pytest.mark.feature(56)
@pytest.mark.edge("57b", 58)
@pytest.mark.parametrize("lanes", [1, 2])
def test_rows_outside_a_step_have_no_position_and_no_pages(
    make_rig: RigMaker, lanes: int
) -> None:
    """Free rows, and a row whose prompt is half computed while others decode."""
    calls = Calls()
    rig = make_rig(
        adapter=noting(calls),
        rows=4,
        lanes=lanes,
        max_num_batched_tokens=16,
        interleave=InterleaveConfig(prefill_steps=1, decode_steps=1),
    )
    for lane in range(lanes):
        rig.submit([lane + 1] * 10, 40)
    rig.run(steps=3)
    rig.submit([9] * 200, 4)
    rig.run()
    computing = False
    decodes = [r for r in rig.records if r.phase.value == "decode"]
    for call, record in zip(calls.named("decode"), decodes, strict=True):
        share = {row.row for lane in record.lanes for row in lane.rows}
        positions, tables = ints(call["start_pos"]), call["page_table"]
        assert int(tables.min()) >= 0
        for row, position in enumerate(positions):
            if row not in share:
                assert position == -1
                assert int(call["tokens"][row, 0]) == 0
                assert not tables[row].any()
                continue
            # Blocks up to the position's own are named, none behind.
            named = position // 16 + 1
            assert tables[row, :named].all()
            assert not tables[row, named:].any()
        computing |= record.phase_reason == "interleave" and 1 not in share
    assert computing


@pytest.mark.feature(86)
def test_lanes_use_the_same_block_ids(make_rig: RigMaker) -> None:
    calls = Calls()
    rig = make_rig(adapter=noting(calls), rows=2, lanes=2)
    for token in (1, 2):
        rig.submit([token] * 40, 2)
    rig.run()
    [both] = calls.named("prefill")
    assert both["empty_slots"] == [0, 2]  # one in each lane
    assert both["page_table"][0].tolist() == both["page_table"][1].tolist()


@pytest.mark.feature(87, 99, 101, 105)
@pytest.mark.edge(14, 21, 22)
@pytest.mark.parametrize(
    "shape",
    [
        {"rows": 3, "num_blocks": 33},
        {"rows": 3, "num_blocks": 33, "max_num_batched_tokens": 24},
        {"rows": 2, "num_blocks": 25, "lanes": 2, "max_num_batched_tokens": 24},
    ],
)
def test_a_slot_belongs_to_one_request_until_it_is_released(
    make_rig: RigMaker, shape: dict[str, int]
) -> None:
    """With more requests than rows, and blocks for fewer than there are rows."""
    calls = Calls()
    rig = make_rig(adapter=noting(calls), enable_prefix_caching=False, **shape)
    streams = [rig.submit([i + 1] * (100 + 10 * i), 80) for i in range(9)]
    rig.abort(streams[5])
    rig.run()
    preemptions = sum(len(record.preempted) for record in rig.records)
    assert preemptions
    computed: dict[int, int] = {}
    releases = 0
    for name, call in calls.made:
        if name == "release":
            releases += 1
            del computed[call["slot"]]  # only one that holds a request
        elif name == "prefill":
            starts, ends = ints(call["start_pos"]), ints(call["prompt_lens"])
            slots = call["empty_slots"]
            for slot, start, end in zip(slots, starts, ends, strict=True):
                # Either a newcomer in a free slot, or the next chunk of its holder.
                assert start == computed.get(slot, 0)
                computed[slot] = end
        else:
            for slot, position in enumerate(ints(call["start_pos"])):
                if position >= 0:
                    assert position == computed[slot]
                    computed[slot] += 1
    assert computed == {}
    # One release for each end, and one for each preemption; the aborted never ran.
    assert releases == len(streams) - 1 + preemptions

"""Checks of the two forwards: prefill and decode (contract 1.7, 1.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from device_service.models.contract import DecodeCall, PrefillCall
from device_service.models.probe.breach import Judge
from device_service.models.probe.facts import Facts
from device_service.models.probe.outputs import Submitted
from device_service.models.probe.reloads import Layout, Reloads
from device_service.models.probe.sampling import check_history, check_sampling_params
from device_service.models.probe.slots import Slots
from device_service.models.probe.tensors import (
    Ints,
    check_array,
    check_layer_tables,
    check_table_row,
    check_tensor,
    check_token_ids,
    check_written_once,
)

Call = Mapping[str, Any]


def check_keywords(judge: Judge, call: Call, known: type[Any], rule: str) -> None:
    """Every keyword is known and none that must be there is missing."""
    required: frozenset[str] = known.__required_keys__
    optional: frozenset[str] = known.__optional_keys__
    missing, unknown = required - set(call), set(call) - required - optional
    judge.expect(not missing, rule, f"{sorted(missing)} missing")
    judge.expect(not unknown, rule, f"{sorted(unknown)} not known")


def check_cache(judge: Judge, facts: Facts, call: Call) -> None:
    """The KV cache is the one that the adapter allocated."""
    judge.expect(
        call["kv_cache"] is facts.kv_cache,
        "1.4",
        "kv_cache is not what the adapter allocated",
    )


def check_prefill(judge: Judge, facts: Facts, slots: Slots, call: Call) -> Submitted:
    """Judge a `prefill_forward` and note how far its slots will have come."""
    check_keywords(judge, call, PrefillCall, "1.7")
    check_cache(judge, facts, call)
    destinations = call["empty_slots"]
    judge.expect(
        isinstance(destinations, list) and destinations, "1.7", "empty_slots is no list"
    )
    count = len(destinations)
    judge.expect(
        len(set(destinations)) == count
        and all(0 <= slot < facts.rows for slot in destinations),
        "1.7",
        f"empty_slots {destinations} are not different slots of {facts.rows}",
    )
    ends = check_array(
        judge, "1.7", "prompt_lens", call["prompt_lens"], np.int64, count
    )
    starts = _starts(judge, facts, call["start_pos"], count)
    tokens = check_tensor(
        judge, "1.7", "tokens", call["tokens"], (count, int(ends.max()))
    )
    facts.width = facts.width or call["page_table"].shape[1]
    table = check_tensor(
        judge, "1.7", "page_table", call["page_table"], (count, facts.width)
    )
    written = []
    for row, slot in enumerate(destinations):
        start, end = int(starts[row]), int(ends[row])
        slots.prefill(judge, slot, start, end)
        check_table_row(judge, facts, table, row, end)
        check_token_ids(judge, facts, tokens[row, start:end], f"tokens row {row}")
        lane = slot // facts.rows_per_lane
        first = start // facts.block_size
        written += [
            (row, lane, int(block)) for block in table[row, first : facts.blocks(end)]
        ]
    check_written_once(judge, written)
    if "page_tables_per_layer" in call:
        taken = np.ones(count, dtype=np.bool_)
        check_layer_tables(judge, facts, call["page_tables_per_layer"], taken)
    params = call.get("sampling_params")
    if params is not None:
        check_sampling_params(judge, facts, params, [True] * count)
    return Submitted(
        None, count, frozenset(range(count)), params is not None, _logprobs(params)
    )


def _starts(judge: Judge, facts: Facts, value: object, count: int) -> Ints:
    """numpy with one lane, torch with several: the contract's one oddity."""
    if facts.lanes > 1:
        return check_tensor(judge, "1.7", "start_pos", value, (count,))
    return check_array(judge, "1.7", "start_pos", value, np.int32, count)


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A decode that was judged: what to remember once it is accepted.

    tables: of all layers that have one of their own, below the common one.
    """

    submitted: Submitted
    positions: Mapping[int, int]
    tables: Ints
    layout: Layout


def check_decode(
    judge: Judge,
    facts: Facts,
    slots: Slots,
    reloads: Reloads,
    call: Call,
    sizes: frozenset[int] | None,
) -> DecodeStep:
    """Judge a `decode_forward`. `sizes` are the warmed-up numbers of rows."""
    check_keywords(judge, call, DecodeCall, "1.8")
    check_cache(judge, facts, call)
    positions, tokens, table = _check_grid(judge, facts, call, sizes)
    batch = len(positions)
    _check_remap(judge, facts, call)
    resident = table
    if "page_tables_per_layer" in call:
        layers = call["page_tables_per_layer"]
        check_layer_tables(judge, facts, layers, positions >= 0)
        resident = np.concatenate([table, *(layer.numpy() for layer in layers)])
    live = [int(row) for row in np.flatnonzero(positions >= 0)]
    judge.expect(live, "1.8", "no row has a request")
    layout = slots.layout(judge, live)
    reloaded = reloads.judge(judge, call, resident, layout)
    _check_rows(judge, facts, slots, positions, table, live, reloaded=reloaded)
    if reloaded:
        check_token_ids(judge, facts, tokens[live], "tokens")
    params = call.get("sampling_params")
    if params is not None:
        check_sampling_params(judge, facts, params, [bool(p >= 0) for p in positions])
    judge.expect(
        params is None or "defer_device_sampling" not in call,
        "1.11",
        "sampling_params beside defer_device_sampling",
    )
    check_history(judge, facts, call)
    submitted = Submitted(
        None,
        batch,
        frozenset(live),
        params is not None or "defer_device_sampling" in call,
        _logprobs(params),
    )
    return DecodeStep(
        submitted, {row: int(positions[row]) for row in live}, resident, layout
    )


def _check_grid(
    judge: Judge, facts: Facts, call: Call, sizes: frozenset[int] | None
) -> tuple[Ints, Ints, Ints]:
    """Positions [B], tokens [B, 1] and page table [B, W] of a warmed-up shape."""
    judge.expect(
        isinstance(call["start_pos"], torch.Tensor) and call["start_pos"].dim() == 1,
        "1.8",
        "start_pos is no torch tensor [B]",
    )
    batch = len(call["start_pos"])
    judge.expect(
        sizes is None or batch in sizes,
        "1.6",
        f"a decode of {batch} rows was not warmed up; {sorted(sizes or ())} were",
    )
    positions = check_tensor(judge, "1.8", "start_pos", call["start_pos"], (batch,))
    tokens = check_tensor(judge, "1.8", "tokens", call["tokens"], (batch, 1))
    facts.width = facts.width or call["page_table"].shape[1]
    table = check_tensor(
        judge, "1.8", "page_table", call["page_table"], (batch, facts.width)
    )
    _check_gaps(judge, positions, tokens, table)
    return positions, tokens, table


def _check_rows(  # noqa: PLR0913 - one step's columns
    judge: Judge,
    facts: Facts,
    slots: Slots,
    positions: Ints,
    table: Ints,
    live: list[int],
    *,
    reloaded: bool,
) -> None:
    per_lane = len(positions) // facts.lanes
    written = []
    for row in live:
        position = int(positions[row])
        slots.decode(judge, row, position, reloads=reloaded)
        judge.expect(
            position < facts.max_seq_len,
            "1.8",
            f"row {row} is at position {position} of {facts.max_seq_len}",
        )
        check_table_row(judge, facts, table, row, position + 1)
        block = int(table[row, position // facts.block_size])
        written.append((row, row // per_lane, block))
    check_written_once(judge, written)


def _check_gaps(judge: Judge, positions: Ints, tokens: Ints, table: Ints) -> None:
    gaps = positions < 0
    judge.expect(
        (positions[gaps] == -1).all(), "1.8", "start_pos is below -1 somewhere"
    )
    judge.expect(
        (tokens[gaps] == 0).all(), "1.8", "a row without a request has a token"
    )
    judge.expect(
        (table[gaps] == 0).all(), "1.8", "a row without a request has a page table"
    )


def _check_remap(judge: Judge, facts: Facts, call: Call) -> None:
    if "slot_remap" not in call:
        return
    remap = check_tensor(judge, "1.8", "slot_remap", call["slot_remap"], (facts.rows,))
    judge.expect(
        (remap == np.arange(facts.rows)).all(),
        "1.8",
        "slot_remap moves a row, and rows do not move",
    )


def _logprobs(params: Any) -> bool:
    return params is not None and any(params.enable_log_probs)

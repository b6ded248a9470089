"""Checks of tensors: kind, dtype, shape, and what page tables may name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from device_service.models.probe.breach import Judge
from device_service.models.probe.facts import Facts

Ints = npt.NDArray[np.integer[Any]]


def check_tensor(
    judge: Judge, rule: str, name: str, value: object, shape: Sequence[int]
) -> Ints:
    """`value` as numpy, if it is a torch tensor of int32 with this shape."""
    judge.expect(
        isinstance(value, torch.Tensor),
        rule,
        f"{name} is {type(value).__name__}, not a torch tensor",
    )
    assert isinstance(value, torch.Tensor)
    judge.expect(
        value.dtype is torch.int32, rule, f"{name} is {value.dtype}, not int32"
    )
    found = tuple(value.shape)
    judge.expect(
        found == tuple(shape), rule, f"{name} has shape {found}, not {tuple(shape)}"
    )
    return value.numpy()


def check_array(
    judge: Judge, rule: str, name: str, value: object, dtype: type, rows: int
) -> Ints:
    """`value`, if it is a numpy array [rows] of `dtype`."""
    judge.expect(
        isinstance(value, np.ndarray),
        rule,
        f"{name} is {type(value).__name__}, not a numpy array",
    )
    assert isinstance(value, np.ndarray)
    judge.expect(
        value.dtype == dtype and value.shape == (rows,),
        rule,
        f"{name} is {value.dtype} {value.shape}, not {dtype.__name__} ({rows},)",
    )
    return value


def check_table_row(
    judge: Judge, facts: Facts, table: Ints, row: int, tokens: int
) -> None:
    """Blocks for `tokens` tokens are named, all of them of the lane's pool."""
    cells = table[row]
    judge.expect(
        cells.min() >= 0,
        "1.8",
        f"page_table row {row} holds {cells.min()}; unused cells are 0, the block "
        "that may always be read",
    )
    judge.expect(
        cells.max() < facts.num_blocks,
        "1.4",
        f"page_table row {row} names block {cells.max()} of {facts.num_blocks}",
    )
    need = facts.blocks(tokens)
    named = cells[:need] > 0
    if facts.windows:  # those at the beginning may be forgotten
        named = named[named.argmax() :]
    judge.expect(
        need <= len(cells) and named.all(),
        "1.8",
        f"page_table row {row} does not name the {need} blocks of its {tokens} tokens",
    )


def check_layer_tables(
    judge: Judge, facts: Facts, tables: object, taken: npt.NDArray[np.bool_]
) -> None:
    """One table per layer at the warm-up shape; `taken` says which rows are used."""
    name = "page_tables_per_layer"
    judge.expect(
        isinstance(tables, list) and len(tables) == facts.layers,
        "2.20",
        f"{name} is no list of {facts.layers} tables",
    )
    assert isinstance(tables, list)
    unused = np.ones(facts.rows, dtype=np.bool_)
    unused[: len(taken)] = ~taken
    for layer, table in enumerate(tables):
        where = f"{name}[{layer}]"
        cells = check_tensor(judge, "2.20", where, table, (facts.rows, facts.width))
        judge.expect(
            cells.min() >= 0 and cells.max() < facts.num_blocks,
            "2.20",
            f"{where} names a block outside the pool of {facts.num_blocks}",
        )
        judge.expect(
            (cells[unused] == 0).all(), "2.20", f"{where} fills a row without a request"
        )


def check_written_once(judge: Judge, written: Iterable[tuple[int, int, int]]) -> None:
    """No two rows of a lane write into one block; entries are (row, lane, block)."""
    owner: dict[tuple[int, int], int] = {}
    for row, lane, block in written:
        other = owner.setdefault((lane, block), row)
        judge.expect(
            other == row,
            "2.6",
            f"rows {other} and {row} both write into block {block} of lane {lane}",
        )


def check_token_ids(judge: Judge, facts: Facts, ids: Ints, where: str) -> None:
    """Ids are in the vocabulary."""
    judge.expect(
        not ids.size or (ids.min() >= 0 and ids.max() < facts.vocabulary),
        "1.7",
        f"{where} holds a token outside the vocabulary of {facts.vocabulary}",
    )

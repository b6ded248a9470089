"""How many KV blocks a lane gets, and the longest sequence that fits them.

Two rules. Hardware cannot be profiled, so there the model states a token budget
and the pool follows from it (contract 2.13). A host mesh has the memory that
is free: every row gets a whole sequence, as far as the budget goes. Both end in
the same question, whether one sequence of `max_model_len` fits
(contract 2.14). Block 0 is the null block and holds no tokens. Pure functions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from ttserve.errors import StartupError

DEFAULT_HOST_FRACTION = 0.25
"""Share of free memory that the pool of a host mesh takes unless told otherwise."""

DEFAULT_MODEL_TOKENS = 131072
"""Token budget of a model that states none (contract 1.2)."""

_GIB = 1 << 30
_WINDOW_HEADROOM = 8

SequenceBlocks = Callable[[int], int]
"""How many blocks one sequence of so many tokens takes, in all KV groups."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What the pool is for: rows and blocks of one lane, and how many lanes."""

    lanes: int
    rows_per_lane: int
    block_size: int

    @property
    def total_rows(self) -> int:
        """Rows of all lanes."""
        return self.lanes * self.rows_per_lane


@dataclass(frozen=True, slots=True)
class Length:
    """The longest sequence that was asked for.

    `fit` lets it shrink until the pool holds it (`--max-model-len -1`).
    """

    tokens: int
    fit: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes that all pools together may take, where the number is from, and the
    option that raises it.
    """

    total_bytes: int
    origin: str
    option: str


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The pool of one lane. `num_blocks` includes the null block.

    `total_bytes` covers all lanes; 0 where blocks take no memory to speak of,
    or where the mesh alone knows. `origin` says what decided.
    """

    num_blocks: int
    max_model_len: int
    total_bytes: int
    origin: str


def model_pool_blocks(
    shape: PoolShape,
    model_tokens: int,
    *,
    output_tokens_per_step: int = 1,
    hybrid_window: int | None = None,
) -> int:
    """Blocks of a lane's pool by the model's own token budget (contract 2.13).

    `hybrid_window` is the sliding window of a model whose layers are planned
    in several KV groups, else None.
    """
    step = max(shape.block_size, output_tokens_per_step)
    tokens = model_tokens + step * shape.rows_per_lane
    if hybrid_window is not None:
        tokens += hybrid_window * shape.rows_per_lane * _WINDOW_HEADROOM
    return _blocks(tokens, shape.block_size)


def raised_pool_blocks(
    shape: PoolShape,
    length: Length,
    sequence_blocks: SequenceBlocks,
    *,
    output_tokens_per_step: int = 1,
) -> int:
    """The smallest pool that admits one longest sequence and a step's output.

    Hybrid models may raise their pool to it (contract 2.13). Block 0 is counted.
    """
    reserved = max(shape.block_size, output_tokens_per_step)
    return 1 + sequence_blocks(length.tokens + reserved)


def size_model_pool(
    shape: PoolShape,
    length: Length,
    num_blocks: int,
    *,
    sequence_blocks: SequenceBlocks | None = None,
    origin: str = "the model's token budget",
) -> PoolSize:
    """A pool of the model's own size, checked against the sequence length.

    `sequence_blocks` is None for a model whose layers form one KV group.
    """
    blocks_of = sequence_blocks or (lambda tokens: _blocks(tokens, shape.block_size))
    room = bisect_right(range(length.tokens + 1), num_blocks - 1, key=blocks_of) - 1
    if room < length.tokens and not (length.fit and room > 0):
        raise StartupError(
            f"max_model_len {length.tokens} does not fit the KV pool of {num_blocks} "
            f"blocks of {shape.block_size} tokens, which is {origin}; {_advice(room)}"
        )
    return PoolSize(num_blocks, min(room, length.tokens), 0, origin)


def size_host_pool(
    shape: PoolShape, length: Length, bytes_per_token: int, budget: Budget
) -> PoolSize:
    """One sequence per row, as far as the budget goes."""
    block_bytes = bytes_per_token * shape.block_size
    affordable = budget.total_bytes // (shape.lanes * block_bytes) - 1
    wanted = shape.rows_per_lane * _blocks(length.tokens, shape.block_size)
    usable = min(wanted, affordable)
    tokens = _fit(length, usable, shape.block_size)
    if tokens is None:
        need = (
            (_blocks(length.tokens, shape.block_size) + 1) * block_bytes * shape.lanes
        )
        raise StartupError(
            f"not enough memory for the KV pool: one sequence of max_model_len "
            f"{length.tokens} needs {_gib(need)}, the pool may take "
            f"{_gib(budget.total_bytes)} ({budget.origin}); "
            f"{_advice(usable * shape.block_size)}, or raise {budget.option}"
        )
    origin = budget.origin if affordable < wanted else "a whole sequence for every row"
    num_blocks = usable + 1
    return PoolSize(num_blocks, tokens, num_blocks * block_bytes * shape.lanes, origin)


def size_simulated_pool(shape: PoolShape, length: Length) -> PoolSize:
    """One sequence per row; simulated blocks hold no keys and values."""
    usable = shape.rows_per_lane * _blocks(length.tokens, shape.block_size)
    return PoolSize(usable + 1, length.tokens, 0, "a whole sequence for every row")


def size_given_pool(
    shape: PoolShape,
    length: Length,
    num_blocks: int,
    bytes_per_token: int,
    free_bytes: int,
) -> PoolSize:
    """A pool of as many blocks as the operator said, on a host mesh."""
    total_bytes = num_blocks * bytes_per_token * shape.block_size * shape.lanes
    if total_bytes > free_bytes:
        raise StartupError(
            f"not enough memory for the KV pool: --num-gpu-blocks-override "
            f"{num_blocks} needs {_gib(total_bytes)}, free are {_gib(free_bytes)}; "
            "lower it"
        )
    usable = num_blocks - 1
    tokens = _fit(length, usable, shape.block_size)
    if tokens is None:
        raise StartupError(
            f"max_model_len {length.tokens} does not fit --num-gpu-blocks-override "
            f"{num_blocks} of {shape.block_size} tokens each (one is the null block); "
            f"{_advice(usable * shape.block_size)}, or raise the override"
        )
    return PoolSize(num_blocks, tokens, total_bytes, "--num-gpu-blocks-override")


def _fit(length: Length, usable_blocks: int, block_size: int) -> int | None:
    """The sequence length to serve; None when the one asked for does not fit."""
    room = usable_blocks * block_size
    if length.tokens <= room:
        return length.tokens
    return room if length.fit and room > 0 else None


def _advice(room: int) -> str:
    if room <= 0:
        return "not even one block fits: lower --block-size"
    return f"set --max-model-len to {room} or less (-1 fits it to the pool)"


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"

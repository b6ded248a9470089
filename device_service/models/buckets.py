"""Which fixed shapes exist: rows of a decode batch, columns of a page table."""

from __future__ import annotations

from collections.abc import Sequence


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... below `limit`, then `limit` itself."""
    sizes = []
    size = 1
    while size < limit:
        sizes.append(size)
        size *= 2
    return [*sizes, limit]


def smallest_covering(buckets: Sequence[int], need: int) -> int:
    """The smallest of ascending `buckets` that is at least `need`."""
    for bucket in buckets:
        if bucket >= need:
            return bucket
    raise ValueError(f"{need} is more than the largest bucket, {buckets[-1]}")


def half_steps(limit: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... below `limit`, then `limit` itself.

    At most a half more than needed, which matters where the size is paid for.
    """
    sizes = {size for power in powers_of_two(limit) for size in (power, power * 3 // 2)}
    return sorted(size for size in sizes if size <= limit)

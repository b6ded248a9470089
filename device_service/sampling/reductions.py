"""Row-wise reductions over the vocabulary that are cheap on a CPU.

torch's argmax and topk over rows of 50,000 are several times slower than its
plain max, which is vectorised. Each function here looks at the maxima or sums
of blocks first and then only into the blocks that matter. A row's result
depends on that row and the number of columns alone.
"""

from __future__ import annotations

import numpy as np
import torch

SHORT = 4096
_MAX_BLOCK = 64
_TOP_BLOCK = 16
_SUM_BLOCK = 256


def first_max(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest value of each row and its first column: two [rows] tensors.

    A NaN counts as largest.
    """
    if x.shape[1] <= SHORT:
        values, columns = first_max_narrow(x)
        return torch.from_numpy(values), torch.from_numpy(columns)
    maxima = x[:, : _whole(x, _MAX_BLOCK)].unflatten(1, (-1, _MAX_BLOCK)).amax(dim=2)
    rest = x[:, _whole(x, _MAX_BLOCK) :]
    if rest.shape[1]:
        maxima = torch.cat((maxima, rest.amax(dim=1, keepdim=True)), dim=1)
    # A shorter last block is widened to the left. It is looked into only if it
    # holds the one largest value, so what it then has twice cannot be found.
    start = (maxima.argmax(dim=1) * _MAX_BLOCK).clamp_(max=x.shape[1] - _MAX_BLOCK)
    columns = start[:, None] + torch.arange(_MAX_BLOCK)
    inside = x.gather(1, columns)
    place = inside.argmax(dim=1)[:, None]
    return inside.gather(1, place)[:, 0], columns.gather(1, place)[:, 0]


def first_max_narrow(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """`first_max` at any width, at its best for narrow rows, without torch.

    numpy's argmax is vectorised, torch's is not; and torch's first call after a
    pause is slow, which is when a decode step's tokens are chosen.
    """
    table = x.numpy()
    columns = table.argmax(axis=1)
    return table[np.arange(len(table)), columns], columns


def top_columns(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest values of each row, best first, and their columns.

    The k largest values lie in the k blocks with the largest maxima. Which of
    several equal values come first, or at all, is not said.
    """
    if x.shape[1] <= max(SHORT, 2 * count * _TOP_BLOCK):
        values, columns = x.topk(count, dim=1)
        return values, columns
    whole = _whole(x, _TOP_BLOCK)
    # A block here is every n-th column: maxima across rows of n are vectorised.
    apart = whole // _TOP_BLOCK
    maxima = x[:, :whole].unflatten(1, (_TOP_BLOCK, apart)).amax(dim=1)
    blocks = maxima.topk(count, dim=1, sorted=False).indices
    inside = blocks[:, :, None] + torch.arange(_TOP_BLOCK) * apart
    rest = torch.arange(whole, x.shape[1]).expand(x.shape[0], -1)
    columns = torch.cat((inside.flatten(1), rest), dim=1)
    values, places = x.gather(1, columns).topk(count, dim=1)
    return values, columns.gather(1, places)


def invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The column at which a row's running sum passes `uniform` times its total.

    weights: [rows, columns], not negative. uniforms: float64 [rows] in [0, 1).
    A column of weight zero is never returned, unless the whole row is zero or
    not finite, when the result is any column.
    """
    width = weights.shape[1]
    if width <= SHORT:
        return _invert_directly(weights, uniforms)
    whole = _whole(weights, _SUM_BLOCK)
    sums = torch.cat(
        (
            weights[:, :whole].unflatten(1, (-1, _SUM_BLOCK)).sum(dim=2),
            weights[:, whole:].sum(dim=1, keepdim=True),
        ),
        dim=1,
    ).to(torch.float64)
    running = sums.cumsum(dim=1)
    target = uniforms * running[:, -1]
    block = _search(running, target)[:, None]
    mass = sums.gather(1, block)[:, 0]
    before = running.gather(1, block)[:, 0] - mass
    # How far into the block, as a share of it: the float32 sum of a block and
    # the float64 sum of its columns differ in the last digits.
    share = ((target - before) / mass).clamp_(min=0.0, max=1.0 - 2.0**-50)
    columns = block * _SUM_BLOCK + torch.arange(_SUM_BLOCK)
    inside = weights.gather(1, columns.clamp(max=width - 1))
    inside.masked_fill_(columns >= width, 0.0)
    place = _invert_directly(inside, share)[:, None]
    return columns.gather(1, place)[:, 0].clamp_(max=width - 1)


def _invert_directly(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    running = weights.cumsum(dim=1, dtype=torch.float64)
    return _search(running, uniforms * running[:, -1])


def _search(running: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first column of each row whose running sum exceeds the target."""
    found = torch.searchsorted(running, target[:, None], right=True)
    return found[:, 0].clamp_(max=running.shape[1] - 1)


def _whole(x: torch.Tensor, block: int) -> int:
    """How many columns lie in whole blocks."""
    return x.shape[1] // block * block

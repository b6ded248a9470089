"""Block-wise reductions give what torch's plain ones give."""

from __future__ import annotations

import pytest
import torch

from device_service.sampling.reductions import first_max, invert, top_columns
from tests.unit.device_service.sampling.batches import random_logits

WIDTHS = [1, 63, 320, 4096, 4097, 9728, 9733, 12800]


@pytest.mark.parametrize("width", WIDTHS)
def test_first_max_is_argmax(width: int) -> None:
    x = random_logits(width, 7, width)
    x[1] = 0.0
    x[2, -1] = 50.0
    x[3, width // 2 :] = 40.0
    x[4] = -torch.inf
    values, columns = first_max(x)
    assert torch.equal(columns, x.argmax(dim=1))
    assert torch.equal(values, x.amax(dim=1))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_nan_is_the_largest_value(width: int) -> None:
    x = random_logits(width, 2, width)
    x[0, width // 3] = torch.nan
    values, columns = first_max(x)
    assert columns[0] == width // 3
    assert values.isnan().tolist() == [True, False]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 5, 288])
def test_top_columns_are_topk(width: int, count: int) -> None:
    count = min(count, width)
    x = random_logits(width, 5, width)
    x[1] = 1.0
    x[2, :-1] = -torch.inf
    values, columns = top_columns(x, count)
    assert torch.equal(values, x.topk(count, dim=1).values)
    assert torch.equal(x.gather(1, columns), values)
    assert all(len(set(row)) == count for row in columns.tolist())


@pytest.mark.parametrize("width", WIDTHS)
def test_invert_lands_where_the_running_sum_passes(width: int) -> None:
    weights = random_logits(width, 64, width).softmax(dim=1)
    uniforms = torch.rand(64, dtype=torch.float64)
    uniforms[:2] = torch.tensor([0.0, 1.0 - 2.0**-53])
    columns = invert(weights, uniforms)[:, None]
    running = weights.cumsum(dim=1, dtype=torch.float64)
    target = (uniforms * running[:, -1])[:, None]
    upper = running.gather(1, columns)
    lower = upper - weights.gather(1, columns)
    assert (lower <= target + 1e-6).all()
    assert (target < upper + 1e-6).all()


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_invert_never_returns_a_column_of_weight_zero(width: int) -> None:
    weights = torch.zeros(200, width)
    weights[:, [0, width // 2, width - 1]] = torch.tensor([1e-3, 2.0, 5e-4])
    uniforms = torch.linspace(0, 1 - 2.0**-53, 200, dtype=torch.float64)
    columns = invert(weights, uniforms)
    assert set(columns.tolist()) == {0, width // 2, width - 1}

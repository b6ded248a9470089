"""How many blocks, and how long a sequence."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_service.kv.memory import cgroup_room_bytes, free_memory_bytes
from device_service.kv.sizing import (
    Budget,
    Length,
    PoolShape,
    model_pool_blocks,
    size_given_pool,
    size_host_pool,
    size_model_pool,
    size_simulated_pool,
)
from ttserve.errors import StartupError

MIB = 1 << 20


@pytest.mark.edge(46)
@pytest.mark.feature(44, 45, 47)
@pytest.mark.parametrize(
    ("shape", "tokens", "window", "blocks"),
    [
        (PoolShape(1, 32, 64), 131072, None, 2080),
        (PoolShape(4, 8, 64), 131072, None, 2056),
        (PoolShape(1, 32, 64), 131072, 1024, 6176),
        (PoolShape(1, 32, 64), 32768, None, 544),
        (PoolShape(1, 32, 64), 65536, 1024, 5152),
    ],
)
def test_the_model_states_a_token_budget(
    shape: PoolShape, tokens: int, window: int | None, blocks: int
) -> None:
    assert model_pool_blocks(shape, tokens, hybrid_window=window) == blocks


def test_block_output_needs_headroom_of_its_own_width() -> None:
    shape = PoolShape(1, 32, 64)
    assert model_pool_blocks(shape, 131072, output_tokens_per_step=256) == 2176


def test_partial_blocks_are_whole_blocks() -> None:
    assert model_pool_blocks(PoolShape(1, 1, 64), 1000) == 17


@pytest.mark.feature(49)
@pytest.mark.parametrize(
    ("asked", "fit", "served"),
    [
        (1000, False, 1000),
        (64 * 64, False, 64 * 64),
        (64 * 64 + 1, True, 64 * 64),
        (131072, True, 64 * 64),
    ],
)
def test_the_null_block_holds_no_tokens(asked: int, served: int, *, fit: bool) -> None:
    shape = PoolShape(1, 32, 64)
    pool = size_model_pool(shape, Length(asked, fit), num_blocks=65)
    assert (pool.num_blocks, pool.max_model_len) == (65, served)


@pytest.mark.edge(43)
@pytest.mark.feature(49)
def test_too_long_for_the_models_pool_names_what_would_fit() -> None:
    with pytest.raises(StartupError, match=r"131072 .* 65 blocks.*-len to 4096"):
        size_model_pool(PoolShape(1, 32, 64), Length(131072, fit=False), 65)


def test_a_host_pool_gives_every_row_a_whole_sequence() -> None:
    pool = size_host_pool(
        PoolShape(1, 32, 64),
        Length(1000, fit=False),
        bytes_per_token=1024,
        budget=Budget(1024 * MIB, "plenty", "--more"),
    )
    assert pool.num_blocks == 32 * 16 + 1
    assert pool.max_model_len == 1000
    assert pool.total_bytes == 513 * 64 * 1024
    assert "every row" in pool.origin


def test_a_host_pool_stays_within_its_budget_over_all_lanes() -> None:
    budget = Budget(64 * MIB, "a small machine", "--more")
    pool = size_host_pool(PoolShape(4, 8, 64), Length(8192, fit=False), 1024, budget)
    assert pool.num_blocks == 256
    assert pool.total_bytes == budget.total_bytes
    assert pool.origin == "a small machine"


def test_fitting_takes_the_whole_budget_for_one_sequence() -> None:
    budget = Budget(8 * MIB, "a tiny machine", "--more")
    pool = size_host_pool(PoolShape(1, 32, 64), Length(131072, fit=True), 1024, budget)
    assert pool.num_blocks == 128
    assert pool.max_model_len == 127 * 64


def test_fitting_does_not_shorten_what_fits() -> None:
    budget = Budget(1024 * MIB, "plenty", "--more")
    pool = size_host_pool(PoolShape(1, 2, 64), Length(100, fit=True), 1024, budget)
    assert pool.max_model_len == 100


def test_less_than_one_sequence_is_an_error_with_numbers() -> None:
    budget = Budget(8 * MIB, "25% of 0.03 GiB free memory", "--more")
    with pytest.raises(StartupError) as caught:
        size_host_pool(PoolShape(1, 32, 64), Length(131072, fit=False), 1024, budget)
    message = str(caught.value)
    assert message.startswith("not enough memory for the KV pool")
    for part in ("131072", "0.13 GiB", "0.01 GiB", "8128", "or raise --more"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("fit", [True, False])
def test_not_even_a_block_is_an_error_in_any_case(*, fit: bool) -> None:
    with pytest.raises(StartupError, match="not even one block fits"):
        size_host_pool(
            PoolShape(1, 1, 64), Length(9, fit), 1024, Budget(9, "nothing", "--more")
        )


def test_simulated_blocks_cost_nothing() -> None:
    pool = size_simulated_pool(PoolShape(2, 128, 64), Length(131072, fit=False))
    assert (pool.num_blocks, pool.total_bytes) == (128 * 2048 + 1, 0)


def test_the_operators_number_of_blocks() -> None:
    shape = PoolShape(1, 32, 64)
    pool = size_given_pool(shape, Length(4096, fit=False), 65, 1024, 8 * MIB)
    assert (pool.num_blocks, pool.max_model_len) == (65, 4096)
    with pytest.raises(StartupError, match="does not fit --num-gpu-blocks-override 65"):
        size_given_pool(shape, Length(4097, fit=False), 65, 1024, 8 * MIB)
    with pytest.raises(StartupError, match="needs 0.00 GiB, free are 0.00 GiB"):
        size_given_pool(shape, Length(4096, fit=False), 65, 1024, MIB)


def _cgroup(path: Path, limit: str, used: int, reclaimable: int = 0) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 1\ninactive_file {reclaimable}\n")


def test_the_tightest_cgroup_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/slice/service\n")
    root = tmp_path / "cgroup"
    _cgroup(root / "slice", str(100 * MIB), 40 * MIB)
    _cgroup(root / "slice" / "service", str(200 * MIB), 30 * MIB)
    assert cgroup_room_bytes(root, own) == 60 * MIB


def test_page_cache_is_not_used_memory(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/\n")
    _cgroup(tmp_path / "cgroup", str(100 * MIB), 90 * MIB, reclaimable=50 * MIB)
    assert cgroup_room_bytes(tmp_path / "cgroup", own) == 60 * MIB


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/x\n")
    _cgroup(tmp_path / "cgroup" / "x", "max", 90 * MIB)
    assert cgroup_room_bytes(tmp_path / "cgroup", own) is None
    assert cgroup_room_bytes(tmp_path / "cgroup", tmp_path / "missing") is None


def test_this_machine_has_memory() -> None:
    assert free_memory_bytes() > 0

"""Which rule sizes the KV pool, and what the model's class has to say in it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)

from device_service.kv.groups import layer_specs, plan_layers
from device_service.kv.sizing import PoolShape, PoolSize
from device_service.mesh.cpu import CpuMesh
from device_service.models.capabilities import Capabilities
from device_service.pool import size_pool
from device_service.startup_checks import adjust
from tests.support.candidates import EVERYTHING, candidate
from ttserve.errors import StartupError

WINDOW = ("--hf-overrides", '{"sliding_window": 1024}')


def spec(window: int | None = None) -> KVCacheSpec:
    shape: dict[str, Any] = {
        "block_size": 64,
        "num_kv_heads": 1,
        "head_size": 8,
        "dtype": torch.float32,
    }
    if window is None:
        return FullAttentionSpec(**shape)
    return SlidingWindowSpec(**shape, sliding_window=window)


class Budgeted:
    """Grants the tokens that it is asked for as a class attribute."""

    granted = 131072
    asked: dict[str, Any] = {}

    @classmethod
    def get_max_tokens_all_users(cls, **facts: Any) -> int:
        cls.asked = facts
        return cls.granted


class Hybrid(Budgeted):
    """A layer with a window of 128 tokens and one without."""

    _HYBRID_KV_CACHE_GROUPS_ENABLED = True
    granted = 1024

    @classmethod
    def get_kv_cache_spec(cls, _: Any) -> dict[str, KVCacheSpec] | None:
        return {"model.layers.0.attn": spec(128), "model.layers.1.attn": spec()}


def sized(
    adapter: type[Any],
    *arguments: str,
    shape: PoolShape | None = None,
    capabilities: Capabilities = EVERYTHING,
) -> PoolSize:
    it = candidate(capabilities, *arguments, mesh="ttnn")
    adjust(it)
    mesh = CpuMesh((8, 4))
    plan = plan_layers(it.vllm_config, layer_specs(adapter, it.vllm_config))
    return size_pool(it, adapter, mesh, shape or PoolShape(1, 32, 64), plan)


@pytest.mark.feature(44, 45)
@pytest.mark.parametrize(
    ("lanes", "rows", "blocks"), [(1, 32, 2080), (4, 8, 2056), (1, 8, 2056)]
)
def test_the_class_grants_tokens_for_one_lane(
    lanes: int, rows: int, blocks: int
) -> None:
    pool = sized(Budgeted, "--max-model-len", "4096", shape=PoolShape(lanes, rows, 64))
    assert pool.num_blocks == blocks
    asked = dict(Budgeted.asked)
    assert asked.pop("model_name")
    assert asked == {
        "num_devices": 32,
        "tt_data_parallel": lanes,
        "max_model_len": 4096,
        "max_num_seqs": rows,
    }


@pytest.mark.feature(46)
def test_a_class_without_a_budget_gets_the_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent:
        pass

    with caplog.at_level(logging.WARNING):
        assert sized(Silent, "--max-model-len", "4096").num_blocks == 2080
    assert "Silent has no get_max_tokens_all_users" in caplog.text
    assert "131072" in caplog.text


@pytest.mark.feature(47)
@pytest.mark.edge(46)
@pytest.mark.parametrize(("flag", "blocks"), [(True, 6176), (False, 2080)])
def test_head_room_for_windows_is_the_classes_choice(
    blocks: int, *, flag: bool
) -> None:
    class Windowed(Budgeted):
        _HYBRID_KV_CACHE_GROUPS_ENABLED = flag

    assert sized(Windowed, "--max-model-len", "4096", *WINDOW).num_blocks == blocks


# 1024 tokens and a block for one row are 17 blocks, none for windows. A sequence
# of 4096 and the block of its next step take 65 blocks in the full group. The
# other group keeps 127 + 2048 tokens, 34 blocks and one more for where they begin;
# of prompts that are not split it keeps all 65, and one more.
@pytest.mark.feature(48)
@pytest.mark.parametrize(
    ("arguments", "blocks"),
    [([], 1 + 65 + 35), (["--no-enable-chunked-prefill"], 1 + 65 + 66)],
)
def test_the_pool_of_a_hybrid_model_is_raised(
    arguments: list[str], blocks: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        pool = sized(
            Hybrid, "--max-model-len", "4096", *arguments, shape=PoolShape(1, 1, 64)
        )
    assert (pool.num_blocks, pool.max_model_len) == (blocks, 4096)
    assert f"raised from 17 to {blocks} blocks" in caplog.text
    assert "raised" in pool.origin


@pytest.mark.feature(48)
def test_a_hybrid_pool_that_is_large_enough_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        pool = sized(Hybrid, "--max-model-len", "256", shape=PoolShape(1, 1, 64))
    assert pool.num_blocks == 17
    assert "raised" not in caplog.text


@pytest.mark.feature(48, 49)
@pytest.mark.edge(43)
def test_other_models_are_told_what_would_fit() -> None:
    class NotHybrid(Hybrid):
        _HYBRID_KV_CACHE_GROUPS_ENABLED = False

    # Of 16 blocks 448 tokens take 7 in the full group and 7 + 1 in the other, which
    # keeps them all; one token more takes 8 and 8 + 1.
    with pytest.raises(StartupError, match=r"4096 does not fit .* to 448 or less"):
        sized(NotHybrid, "--max-model-len", "4096", shape=PoolShape(1, 1, 64))
    with pytest.raises(StartupError, match=r"4096 does not fit .* to 1088 or less"):
        sized(
            type("Plain", (Budgeted,), {"granted": 1024 + 64}),
            "--max-model-len",
            "4096",
            shape=PoolShape(1, 1, 64),
        )


@pytest.mark.feature(49)
@pytest.mark.edge(44)
def test_minus_one_fits_hybrid_models_without_raising_the_pool() -> None:
    pool = sized(Hybrid, "--max-model-len", "-1", shape=PoolShape(1, 1, 64))
    assert pool.num_blocks == 17
    # 7 blocks in the full group and 7 + 1 in the other are 15 of 16 blocks; 449
    # tokens would take 8 and 8 + 1.
    assert pool.max_model_len == 448


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([], "must return a dict or None, not"),
        ({"layer0": None}, "'layer0' names no layer"),
        ({"model.layers.0.attn": 7}, "must be a KVCacheSpec, not 7"),
    ],
)
def test_a_hook_that_answers_wrongly(answer: object, says: str) -> None:
    class Wrong(Hybrid):
        @classmethod
        def get_kv_cache_spec(cls, _: Any) -> Any:
            return answer

    with pytest.raises(StartupError, match=says) as caught:
        sized(Wrong, "--max-model-len", "256")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", [None, {}])
def test_a_hook_may_leave_the_plan_to_the_service(
    answer: dict[str, KVCacheSpec] | None,
) -> None:
    class Undecided(Hybrid):
        @classmethod
        def get_kv_cache_spec(cls, _: Any) -> dict[str, KVCacheSpec] | None:
            return answer

    with pytest.raises(StartupError, match="does not fit"):
        sized(Undecided, "--max-model-len", "4096", shape=PoolShape(1, 1, 64))

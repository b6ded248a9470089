"""Models whose layers fall into KV groups: storage, page tables and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from device_service.kv.groups import layer_specs, plan_layers
from device_service.mesh.cpu import CpuMesh
from device_service.mesh.driver import LoadSpec, load_model
from device_service.models.sim_adapter import SimAdapter
from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from tests.support.candidates import EVERYTHING, candidate
from tests.support.rig import Rig
from tests.unit.device_service.mesh.contract_adapters import NewAdapter, OldAdapter
from ttserve.errors import StartupError

RigMaker = Callable[..., Rig]
Specs = dict[str, KVCacheSpec]


def full(*, heads: int = 2, size: int = 8, block: int = 16) -> KVCacheSpec:
    return FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=size, dtype=torch.float32
    )


def window(*, block: int = 16, length: int = 32, heads: int = 2) -> KVCacheSpec:
    return SlidingWindowSpec(
        block_size=block,
        num_kv_heads=heads,
        head_size=8,
        dtype=torch.float32,
        sliding_window=length,
    )


def named(*specs: KVCacheSpec) -> Specs:
    return {f"model.layers.{i}.attn": spec for i, spec in enumerate(specs)}


# As in Gemma 3: five layers with a window to each one without.
HYBRID = named(*[window()] * 5, full())
# One kind of layer, whose heads differ: the planner keeps them in one group.
UNEQUAL = named(full(heads=2), full(heads=4), full(heads=2, size=16))


def describing(specs: Specs, base: type[Any]) -> type[Any]:
    """An adapter class that describes its layers."""

    class Describing(base):  # type: ignore[misc]
        @classmethod
        def get_kv_cache_spec(cls, _: Any) -> Specs:
            return specs

    return Describing


def allocated(base: type[Any], specs: Specs, devices: int = 1) -> Any:
    """A model of an adapter class that describes its layers, storage allocated."""
    made: list[Any] = []

    class Kept(describing(specs, base)):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    config = candidate(EVERYTHING).vllm_config
    plan = plan_layers(config, layer_specs(Kept, config))
    spec = LoadSpec(
        hf_config=config.model_config.hf_config,
        model_path="/models/some",
        dtype=torch.float32,
        max_model_len=256,
        block_size=16,
        rows_per_lane=4,
        planned_layers=plan.layers,
    )
    load_model(Kept, CpuMesh((1, devices)), spec).allocate(40, 256)
    return made[0]


# -- storage ------------------------------------------------------------------------


@pytest.mark.feature(53)
@pytest.mark.edge(48)
def test_layers_of_different_groups_share_buffers() -> None:
    specs = allocated(NewAdapter, HYBRID).last("allocate per layer")["specs"]
    assert len(specs) == 6
    assert {shape for shape, _, _ in specs} == {(40, 2, 16, 8)}
    # The planner makes groups of one layer each, all in the same buffer.
    assert [tensor for _, _, tensor in specs] == [0] * 6


@pytest.mark.feature(53)
def test_layers_of_one_group_have_buffers_of_their_own() -> None:
    specs = named(window(), full(), window(), full())
    shapes = allocated(NewAdapter, specs).last("allocate per layer")["specs"]
    tensors = [tensor for _, _, tensor in shapes]
    # Two groups of two layers: the first of each share a buffer, and the second.
    assert tensors == [0, 0, 1, 1]


@pytest.mark.feature(52, 54)
@pytest.mark.edge(48)
@pytest.mark.parametrize(("devices", "heads"), [(1, [2, 4, 2]), (2, [1, 2, 1])])
def test_unequal_layers_of_one_group_have_shapes_of_their_own(
    devices: int, heads: list[int]
) -> None:
    specs = allocated(NewAdapter, UNEQUAL, devices).last("allocate per layer")["specs"]
    assert [shape for shape, _, _ in specs] == [
        (40, heads[0], 16, 8),
        (40, heads[1], 16, 8),
        (40, heads[2], 16, 16),
    ]
    assert [tensor for _, _, tensor in specs] == [0, 1, 2]


@pytest.mark.feature(51)
@pytest.mark.parametrize("specs", [HYBRID, UNEQUAL])
def test_the_legacy_way_of_allocating_is_not_enough(specs: Specs) -> None:
    with pytest.raises(StartupError, match="allocates only equal layers"):
        allocated(OldAdapter, specs)


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ({"layers.0.a": full(), "layers.2.a": full()}, r"layers \[0, 2\]; there must"),
        ({"layers.0.a": full(), "layers.0.b": full()}, r"layers \[0, 0\]; there must"),
        (
            {
                "layers.0.m": MambaSpec(
                    shapes=((2, 8),), dtypes=(torch.float32,), block_size=16
                )
            },
            "layers.0.m is no attention layer",
        ),
    ],
)
def test_layers_that_cannot_be_planned(specs: Specs, says: str) -> None:
    with pytest.raises(StartupError, match=says) as caught:
        plan_layers(candidate(EVERYTHING).vllm_config, specs)
    assert "\n" not in str(caught.value)


# -- steps ----------------------------------------------------------------------------


class Tabled(SimAdapter):
    """Computes with the last layer's table, and remembers all that it was given."""

    given: list[tuple[str, torch.Tensor, list[torch.Tensor] | None]]

    @classmethod
    def reset(cls) -> None:
        cls.given = []

    def prefill_forward(
        self, *, page_tables_per_layer: list[torch.Tensor] | None = None, **rest: Any
    ) -> Any:
        return super().prefill_forward(
            **self._chosen("prefill", page_tables_per_layer, rest)
        )

    def decode_forward(
        self, *, page_tables_per_layer: list[torch.Tensor] | None = None, **rest: Any
    ) -> Any:
        return super().decode_forward(
            **self._chosen("decode", page_tables_per_layer, rest)
        )

    def _chosen(
        self, name: str, tables: list[torch.Tensor] | None, rest: dict[str, Any]
    ) -> dict[str, Any]:
        first = rest["page_table"]
        self.given.append(
            (name, first.clone(), tables and [table.clone() for table in tables])
        )
        if tables is not None:
            rest["page_table"] = tables[-1][: len(first)]
        return rest


def run(rig: Rig, prompts: list[list[int]], count: int) -> None:
    """All prompts together; each must get the tokens that it gets alone."""
    streams = [rig.submit(prompt, count) for prompt in prompts]
    rig.run()
    vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    for stream, prompt in zip(streams, prompts, strict=True):
        assert stream.token_ids == expected_tokens(prompt, count, vocabulary)
    rig.assert_nothing_is_held()


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    Tabled.reset()


@pytest.mark.feature(55)
@pytest.mark.edge(36)
@pytest.mark.parametrize("lanes", [1, 2])
def test_each_layer_gets_the_table_of_its_group_at_a_fixed_shape(
    make_rig: RigMaker, lanes: int
) -> None:
    rig = make_rig(
        adapter=describing(named(window(), full()), Tabled),
        rows=4,
        lanes=lanes,
        enable_prefix_caching=False,
        max_num_batched_tokens=48,
    )
    prompts = [[i + 1] * (20 + 30 * i) for i in range(5)]
    run(rig, prompts, 40)
    width = Tabled.given[0][1].shape[1]
    for _, first, tables in Tabled.given:
        assert tables is not None
        assert [table.shape for table in tables] == [(4 * lanes, width)] * 2
        for table in tables:
            assert int(table.min()) >= 0
            assert not table[len(first) :].any()
        assert torch.equal(tables[0][: len(first)], first)
        for mine, other in zip(*(t[: len(first)] for t in tables), strict=True):
            # One pool: a block is never in the tables of both groups.
            assert not set(mine[mine > 0].tolist()) & set(other[other > 0].tolist())


@pytest.mark.feature(54, 55)
def test_one_group_needs_one_table(make_rig: RigMaker) -> None:
    rig = make_rig(adapter=describing(UNEQUAL, Tabled), rows=4)
    run(rig, [[1] * 40, [2] * 70], 20)
    assert {tables is None for _, _, tables in Tabled.given} == {True}


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"max_num_batched_tokens": 24},
        {"num_blocks": 70, "enable_prefix_caching": False},
        {"num_blocks": 70, "max_num_batched_tokens": 24},
    ],
)
def test_tokens_are_right_whatever_the_groups_do(
    make_rig: RigMaker, shape: dict[str, Any]
) -> None:
    """The table that is computed with is the full group's, of 16 tokens a block."""
    rig = make_rig(adapter=describing(HYBRID, Tabled), rows=4, **shape)
    prompts = [[3, 5, 7] * 20, [3, 5, 7] * 20 + [9] * 40, [4] * 90, [6] * 130, [8] * 9]
    run(rig, prompts, 60)
    run(rig, prompts, 60)  # from the prefix cache, where there is one


def test_a_window_gives_blocks_back(make_rig: RigMaker) -> None:
    """A long sequence holds its window's blocks, not those of all its tokens."""
    rig = make_rig(
        adapter=describing(named(window(length=32), full()), Tabled),
        rows=1,
        max_num_batched_tokens=32,
        enable_prefix_caching=False,
    )
    rig.submit([1] * 400, 20)
    rig.run(steps=20)
    used = [record.lanes[0].used_blocks for record in rig.records]
    rig.run()
    # 26 blocks of the full group; both groups whole would be 52.
    assert 26 < max(used) < 36

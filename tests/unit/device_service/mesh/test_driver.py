"""The driver calls adapters as the contract says and reads each step once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.mesh.cpu import CpuMesh
from device_service.mesh.driver import (
    AdapterDriver,
    LoadedModel,
    LoadSpec,
    TraceMode,
    load_model,
)
from device_service.models.contract import KVLayer
from tests.unit.device_service.mesh.contract_adapters import NewAdapter, OldAdapter
from ttserve.errors import StartupError

CONFIG = LlamaConfig(
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=7,
)


@pytest.fixture
def mesh() -> Iterator[CpuMesh]:
    mesh = CpuMesh()
    mesh.open()
    yield mesh
    mesh.close()


def _spec(**changes: Any) -> LoadSpec:
    values: dict[str, Any] = {
        "hf_config": CONFIG,
        "model_path": "/models/some",
        "dtype": torch.bfloat16,
        "max_model_len": 100,
        "block_size": 16,
        "rows_per_lane": 20,
    }
    return LoadSpec(**values | changes)


def _open(
    adapter: type[OldAdapter], mesh: CpuMesh, **changes: Any
) -> tuple[AdapterDriver, Any]:
    made: list[OldAdapter] = []

    class Kept(adapter):  # type: ignore[valid-type,misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    driver = load_model(Kept, mesh, _spec(**changes)).allocate(50, 100)
    return driver, made[0]


def _prefill(rows: int = 2) -> PrefillInput:
    return PrefillInput(
        tokens=torch.zeros(rows, 5, dtype=torch.int32),
        page_table=torch.zeros(rows, 7, dtype=torch.int32),
        prompt_lens=torch.full((rows,), 5),
        start_pos=torch.zeros(rows, dtype=torch.int32),
        slots=tuple(range(rows)),
        emits=(True,) * rows,
    )


def _decode(rows: int, sample_rows: tuple[int, ...]) -> DecodeInput:
    return DecodeInput(
        tokens=torch.zeros(rows, 1, dtype=torch.int32),
        positions=torch.zeros(rows, dtype=torch.int32),
        page_table=torch.zeros(rows, 7, dtype=torch.int32),
        sample_rows=sample_rows,
    )


def test_the_adapter_learns_path_and_dtype_from_a_copy(mesh: CpuMesh) -> None:
    _, model = _open(OldAdapter, mesh, lanes=2, revision="abc")
    given = model.last("initialize")["hf_config"]
    assert (given.name_or_path, given.dtype) == ("/models/some", torch.bfloat16)
    assert given._commit_hash == "abc"  # noqa: SLF001 - how a revision travels
    assert given is not CONFIG
    assert CONFIG.name_or_path == ""
    assert (model.rows, model.last("initialize")["lanes"]) == (40, 2)


def test_bytes_per_block_of_a_uniform_model(mesh: CpuMesh) -> None:
    model: LoadedModel = load_model(OldAdapter, mesh, _spec())
    assert model.bytes_per_block == 16 * 3 * 2 * (16 + 16) * 2


@pytest.mark.feature(52)
@pytest.mark.parametrize(
    ("mesh_grid", "lanes", "heads"), [((1, 1), 1, 2), ((1, 8), 1, 1), ((1, 4), 4, 2)]
)
def test_shapes_are_per_device(
    mesh_grid: tuple[int, int], lanes: int, heads: int
) -> None:
    mesh = CpuMesh(mesh_grid)
    _, old = _open(OldAdapter, mesh, lanes=lanes)
    _, new = _open(NewAdapter, mesh, lanes=lanes)
    shape = (50, heads, 16, 16)
    assert old.last("allocate") == {
        "shape": shape,
        "dtype": torch.bfloat16,
        "layers": 3,
    }
    specs = new.last("allocate per layer")["specs"]
    assert specs == [(shape, torch.bfloat16, layer) for layer in range(3)]


@pytest.mark.feature(51)
@pytest.mark.edge(48)
def test_unequal_layers_need_an_adapter_that_allocates_per_layer(
    mesh: CpuMesh,
) -> None:
    class OldUnequal(_Unequal, OldAdapter):
        pass

    class NewUnequal(_Unequal, NewAdapter):
        pass

    with pytest.raises(StartupError, match="allocates only equal layers"):
        _open(OldUnequal, mesh)
    _, new = _open(NewUnequal, mesh)
    assert new.last("allocate per layer")["specs"] == [
        ((50, 2, 16, 16), torch.bfloat16, 0),
        ((50, 4, 16, 8), torch.bfloat16, 1),
    ]


class _Unequal:
    def kv_layers(self) -> list[KVLayer]:
        return [KVLayer(2, 16, 16, torch.bfloat16), KVLayer(4, 8, 8, torch.bfloat16)]


@pytest.mark.feature(23)
@pytest.mark.parametrize("profile", [None, "accuracy", "performance"])
def test_the_adapter_is_built_with_the_profile(
    mesh: CpuMesh, profile: str | None
) -> None:
    _, model = _open(OldAdapter, mesh, optimizations=profile)
    assert model.last("initialize")["optimizations"] == profile


def test_a_pool_that_cannot_be_had_is_a_startup_error(mesh: CpuMesh) -> None:
    model = load_model(_NoMemory, mesh, _spec())
    with pytest.raises(StartupError, match=r"50 blocks.*cannot be allocated"):
        model.allocate(50, 100)


class _NoMemory(OldAdapter):
    def allocate_kv_cache(self, *_: Any) -> str:
        raise RuntimeError("no memory left\nat all")


def test_page_table_width(mesh: CpuMesh) -> None:
    model = load_model(OldAdapter, mesh, _spec())
    assert model.allocate(50, 100).page_table_width == 7
    assert model.allocate(5, 100).page_table_width == 5


@pytest.mark.feature(38, 39, 41)
@pytest.mark.parametrize(
    ("mode", "order"),
    [
        (TraceMode.NONE, ["prefill", "decode"]),
        (TraceMode.DECODE_ONLY, ["prefill", "decode", "decode traced"]),
        (
            TraceMode.ALL,
            ["prefill", "decode", "prefill traced", "decode traced"],
        ),
    ],
)
def test_warm_up_order(mesh: CpuMesh, mode: TraceMode, order: list[str]) -> None:
    driver, model = _open(NewAdapter, mesh, trace_mode=mode, lanes=2)
    lines: list[str] = []
    driver.warm_up(lines.append)
    warmed = [
        name.removeprefix("warm ") + (" traced" if call["enable_trace"] else "")
        for name, call in model.calls
        if name.startswith("warm")
    ]
    assert warmed == order
    assert len(lines) == len(order)
    decode = model.last("warm decode")
    assert (decode["max_batch_size"], decode["num_blocks"]) == (40, 7)
    assert decode["kv_cache"] == "cache"
    assert model.already_warmed_up_prefill is False


def test_prefill_of_an_adapter_that_blocks(mesh: CpuMesh) -> None:
    driver, model = _open(OldAdapter, mesh)
    handle = driver.prefill(_prefill())
    assert handle.is_done()
    result = handle.result()
    assert result.logits is not None
    assert result.logits[:, 0].tolist() == [0.0, 1.0]
    assert result.began <= result.ended
    call = model.last("prefill")
    assert isinstance(call["prompt_lens"], np.ndarray)
    assert call["prompt_lens"].dtype == np.int64
    assert isinstance(call["start_pos"], np.ndarray)
    assert call["empty_slots"] == [0, 1]
    assert call["kv_cache"] == "cache"
    assert call["enable_trace"] is True
    assert "read_from_device" not in call


def test_start_positions_are_torch_with_lanes(mesh: CpuMesh) -> None:
    driver, model = _open(OldAdapter, mesh, lanes=2)
    driver.prefill(_prefill()).result()
    assert isinstance(model.last("prefill")["start_pos"], torch.Tensor)


def test_lanes_are_told_that_rows_do_not_move(mesh: CpuMesh) -> None:
    driver, model = _open(OldAdapter, mesh, lanes=2, rows_per_lane=3)
    driver.decode(_decode(6, (0,))).result()
    assert model.last("decode")["slot_remap"].tolist() == [0, 1, 2, 3, 4, 5]
    driver, model = _open(OldAdapter, mesh)
    driver.decode(_decode(20, (0,))).result()
    assert "slot_remap" not in model.last("decode")


@pytest.mark.feature(38)
@pytest.mark.parametrize(
    ("mode", "traced"),
    [
        (TraceMode.NONE, (False, False)),
        (TraceMode.DECODE_ONLY, (False, True)),
        (TraceMode.ALL, (True, True)),
    ],
)
def test_trace_mode_says_which_calls_replay(
    mesh: CpuMesh, mode: TraceMode, traced: tuple[bool, bool]
) -> None:
    driver, model = _open(OldAdapter, mesh, trace_mode=mode)
    driver.prefill(_prefill()).result()
    driver.decode(_decode(20, (0,))).result()
    prefill, decode = (model.last(name) for name in ("prefill", "decode"))
    assert (prefill["enable_trace"], decode["enable_trace"]) == traced


def test_decode_gathers_what_an_old_adapter_cannot(mesh: CpuMesh) -> None:
    driver, model = _open(OldAdapter, mesh)
    result = driver.decode(_decode(20, (6, 1))).result()
    assert result.logits is not None
    assert result.logits[:, 0].tolist() == [6.0, 1.0]
    assert "reload_inputs" not in model.last("decode")
    assert model.last("decode")["read_from_device"] is False


@pytest.mark.edge(31)
@pytest.mark.feature(110)
def test_decode_reads_compactly_and_once(mesh: CpuMesh) -> None:
    driver, model = _open(NewAdapter, mesh)
    handle = driver.decode(_decode(16, (6, 1)))
    done = threading.Event()
    handle.on_done(done.set)
    first = handle.result()
    assert done.wait(5)
    assert handle.is_done()
    assert handle.result() is first
    assert model.reads == 1
    assert first.logits is not None
    assert first.logits[:, 0].tolist() == [6.0, 1.0]
    reload = {
        name: value
        for name, value in model.last("decode").items()
        if name.startswith("re") and name != "read_from_device"
    }
    assert reload == {
        "reload_inputs": True,
        "reload_page_table": False,
        "reload_sampling_params": False,
        "reset_sampling_state": False,
    }


@pytest.mark.edge(32)
@pytest.mark.feature(114)
@pytest.mark.parametrize("adapter", [OldAdapter, NewAdapter])
def test_a_failed_submission_comes_out_of_the_handle(
    mesh: CpuMesh, adapter: type[OldAdapter]
) -> None:
    driver, model = _open(adapter, mesh)
    model.fails = ValueError("bad step")
    for handle in (driver.prefill(_prefill()), driver.decode(_decode(4, (0,)))):
        called: list[int] = []
        handle.on_done(partial(called.append, 1))
        assert called == [1]
        for _ in range(2):
            with pytest.raises(ValueError, match="bad step"):
                handle.result()
    model.fails = None
    driver.decode(_decode(4, (0,))).result()


def test_a_failed_readback_is_kept(mesh: CpuMesh) -> None:
    driver, model = _open(_FailingReadback, mesh)
    handle = driver.decode(_decode(4, (0,)))
    for _ in range(2):
        with pytest.raises(OSError, match="link down"):
            handle.result()
    assert model.reads == 1


def test_a_step_without_events(mesh: CpuMesh) -> None:
    driver, _ = _open(_NoEvents, mesh)
    handle = driver.decode(_decode(4, (2,)))
    called: list[int] = []
    handle.on_done(partial(called.append, 1))
    assert called == [1]
    assert handle.is_done()
    result = handle.result()
    assert result.logits is not None
    assert result.began == result.ended


class _NoEvents(NewAdapter):
    def read_decode_output(self, tt_out: Any, *, async_read: bool) -> Any:
        return tt_out, []


class _FailingReadback(NewAdapter):
    def process_decode_output_host(self, *_: Any, **__: Any) -> Any:
        self.reads += 1
        raise OSError("link down")


@pytest.mark.feature(43)
@pytest.mark.parametrize(
    ("highest", "rows"), [(0, 1), (1, 4), (3, 4), (4, 16), (15, 16), (16, 20), (19, 20)]
)
def test_decode_rows_are_the_smallest_bucket(
    mesh: CpuMesh, highest: int, rows: int
) -> None:
    driver, _ = _open(NewAdapter, mesh)
    assert driver.decode_rows(highest) == rows


def test_decode_rows_without_buckets_or_with_lanes(mesh: CpuMesh) -> None:
    assert _open(OldAdapter, mesh)[0].decode_rows(0) == 20
    assert _open(NewAdapter, mesh, lanes=2)[0].decode_rows(0) == 40


@pytest.mark.parametrize("row", [-1, 20])
def test_decode_rows_outside_the_grid(mesh: CpuMesh, row: int) -> None:
    with pytest.raises(ValueError, match="row"):
        _open(NewAdapter, mesh)[0].decode_rows(row)


def test_hooks_are_called_where_they_are(mesh: CpuMesh) -> None:
    driver, model = _open(NewAdapter, mesh)
    driver.release_row(3)
    driver.close()
    driver.close()
    assert model.last("release") == {"slot": 3}
    assert model.names().count("release captures") == 1
    old, _ = _open(OldAdapter, mesh)
    old.release_row(3)
    old.close()

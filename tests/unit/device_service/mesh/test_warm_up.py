"""Warm-up with what the device samples, masks included, in the contract's order."""

from __future__ import annotations

from typing import Any

import pytest

from device_service.mesh.cpu import CpuMesh
from device_service.mesh.placement import Placement, TraceMode
from device_service.mesh.warm_up import DeviceSampling, WarmUp
from tests.unit.device_service.mesh.contract_adapters import NewAdapter

EVERYTHING = DeviceSampling(prefill=True, decode=True, grammar=True)


class GrammarAdapter(NewAdapter):
    """Captures traces that sample under a mask, or says that it cannot."""

    can_capture = True

    def prepare_device_grammar_decode_trace_warmup(self, **call: Any) -> bool:
        self.note("prepare grammar", **call)
        return self.can_capture

    def capture_prepared_device_grammar_decode_trace(self) -> None:
        self.note("capture grammar")


def _warm_up(
    model: NewAdapter, mode: TraceMode, sampling: DeviceSampling = EVERYTHING
) -> bool:
    placement = Placement(lanes=2, rows_per_lane=8, page_table_width=5, trace_mode=mode)
    return WarmUp(model, "cache", placement, sampling, lambda _: None).run()


def _calls(model: NewAdapter) -> list[str]:
    return [
        name + (" traced" if call.get("enable_trace") else "")
        for name, call in model.calls
    ]


def _last_grammar(model: NewAdapter) -> tuple[bool, bool]:
    call = model.last("warm decode")
    return call["can_sample_device_grammar"], call["sampling_trace_variants_prepared"]


@pytest.fixture
def model() -> GrammarAdapter:
    return GrammarAdapter(CpuMesh(), 16)


@pytest.mark.feature(39)
def test_masked_traces_are_prepared_before_any_trace_and_captured_between(
    model: GrammarAdapter,
) -> None:
    assert _warm_up(model, TraceMode.ALL)
    assert _calls(model) == [
        "warm prefill",
        "warm decode",
        "prepare grammar",
        "warm prefill traced",
        "capture grammar",
        "warm decode traced",
    ]
    assert model.last("prepare grammar") == {
        "kv_cache": "cache",
        "max_batch_size": 16,
        "num_blocks": 5,
    }
    assert _last_grammar(model) == (True, True)


def test_an_adapter_that_cannot_capture_leaves_masks_to_the_host(
    model: GrammarAdapter,
) -> None:
    model.can_capture = False
    assert not _warm_up(model, TraceMode.ALL)
    assert "capture grammar" not in _calls(model)
    assert _last_grammar(model) == (False, False)


@pytest.mark.parametrize("mode", [TraceMode.DECODE_ONLY, TraceMode.NONE])
def test_other_trace_modes_prepare_nothing(
    model: GrammarAdapter, mode: TraceMode
) -> None:
    assert _warm_up(model, mode)
    assert "prepare grammar" not in _calls(model)
    assert _last_grammar(model) == (True, False)


@pytest.mark.parametrize("prefill", [True, False])
def test_an_adapter_without_masks_is_not_told_of_them(
    model: GrammarAdapter, *, prefill: bool
) -> None:
    sampling = DeviceSampling(prefill=prefill, decode=True)
    assert not _warm_up(model, TraceMode.ALL, sampling)
    assert "prepare grammar" not in _calls(model)
    assert model.last("warm decode") == {
        "kv_cache": "cache",
        "enable_trace": True,
        "max_batch_size": 16,
        "num_blocks": 5,
        "can_sample_on_device": True,
    }
    assert model.last("warm prefill")["can_sample_on_device"] is prefill

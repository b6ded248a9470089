"""Adapters that do less than ours: the engine serves the same tokens over them."""

from __future__ import annotations

from typing import Any

import pytest

from device_service.batch.inputs import DecodeInput
from device_service.mesh.interface import StepHandle
from device_service.models.sim_adapter import SimAdapter
from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.records import StepUpdates
from tests.support.rig import Rig
from ttserve.sim_model import sim_model_dir

PROMPTS = [[70 + i % 9 for i in range(length)] for length in (40, 3, 17, 5, 29)]
TOKENS = 30


class Older(SimAdapter):
    """Of input contract 0: it is told of layouts and decides the rest itself."""

    decode_input_update_contract = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sampled_here = False
        self.resets: list[bool] = []

    def decode_forward(self, **call: Any) -> Any:
        on_device = "sampling_params" in call
        reset = call.pop("reset_batch", True)
        self.resets.append(reset)
        reload = reset or not self.sampled_here
        self.sampled_here = on_device
        return super().decode_forward(
            **call,
            reload_inputs=reload,
            reload_page_table=not reload,
            reload_sampling_params=on_device,
        )


class Blocking:
    """The least there is: blocks, reads nothing back, no buckets, no reload."""

    model_capabilities: dict[str, Any] = {}

    def __init__(self, sim: SimAdapter) -> None:
        self.allocate_kv_cache_per_layer = sim.allocate_kv_cache_per_layer
        self.warmup_model_prefill = sim.warmup_model_prefill
        self.warmup_model_decode = sim.warmup_model_decode
        self.prefill_forward = sim.prefill_forward
        self._sim = sim
        self.batches: set[int] = set()

    @classmethod
    def initialize_vllm_model(cls, *arguments: Any, **options: Any) -> Blocking:
        return cls(SimAdapter.initialize_vllm_model(*arguments, **options))

    def decode_forward(self, **call: Any) -> Any:
        self.batches.add(len(call["start_pos"]))
        return self._sim.decode_forward(**call | {"read_from_device": True})


def test_tokens_do_not_wait_for_a_step_that_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Rig(sim_model_dir(), adapter=Blocking, rows=2) as rig:
        order: list[str] = []
        deliver, decode = rig.sink.deliver, rig.driver.decode

        def delivering(updates: StepUpdates) -> None:
            order.append("told")
            deliver(updates)

        def decoding(step: DecodeInput) -> StepHandle:
            order.append("decode")
            return decode(step)

        monkeypatch.setattr(rig.sink, "deliver", delivering)
        monkeypatch.setattr(rig.driver, "decode", decoding)
        rig.submit([70, 71], 4)
        rig.run()
    assert order == ["told", "decode", "told", "decode", "told", "decode", "told"]


def _served(
    adapter: type[Any], **options: Any
) -> tuple[list[list[int]], Any, set[str]]:
    """Tokens of all prompts, the adapter's instance, and the reasons of overlap."""
    with Rig(sim_model_dir(), adapter=adapter, rows=4, **options) as rig:
        streams = [rig.submit(prompt, TOKENS) for prompt in PROMPTS]
        rig.run()
        rig.assert_nothing_is_held()
        reasons = {record.overlap.reason for record in rig.records}
        return [stream.token_ids for stream in streams], rig.probe.model, reasons


def _expected(rig_options: dict[str, Any] | None = None) -> list[list[int]]:
    with Rig(sim_model_dir(), **(rig_options or {})) as rig:
        vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    return [expected_tokens(prompt, TOKENS, vocabulary) for prompt in PROMPTS]


@pytest.mark.feature(112)
@pytest.mark.parametrize("mode", [None, "decode_only", "all"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
def test_an_adapter_of_the_older_contract(
    mode: str | None, lanes: int, *, overlap: bool
) -> None:
    tokens, model, reasons = _served(
        Older,
        lanes=lanes,
        async_scheduling=overlap,
        site=None if mode is None else {"mode": mode},
        max_num_batched_tokens=24,
    )
    assert tokens == _expected()
    assert ("steady" in reasons) is (overlap and mode is not None)
    # A reset where rows changed, and none in between once the device samples.
    assert (False in model.resets) is (mode is not None)


@pytest.mark.feature(43, 106)
@pytest.mark.parametrize("lanes", [1, 2])
def test_an_adapter_that_only_blocks(lanes: int) -> None:
    tokens, model, reasons = _served(
        Blocking, lanes=lanes, enable_chunked_prefill=False, enable_prefix_caching=False
    )
    assert tokens == _expected()
    assert reasons <= {"sync_mode", "nothing_in_flight"}
    assert model.batches == {4 * lanes}

"""Prefills and decodes that the contract does not allow, one fault at a time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from device_service.models.probe import ContractBreach
from tests.unit.device_service.models.probe.standing import (
    GRID,
    RELOAD,
    RESET,
    STILL,
    Standing,
    decode_call,
    device_decode_call,
    loaded,
    prefill_call,
    read,
    sampling,
    serving,
    stepped,
    warm_call,
)


def _int32(*rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def _refused(probe: Any, name: str, call: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractBreach, match=said) as caught:
        getattr(probe, name)(**call)
    assert probe.breaches == [caught.value]
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"contract {caught.value.rule}: {name}: ")


LAYER = torch.zeros(4, 3, dtype=torch.int32)


@pytest.fixture
def probe() -> Any:
    return serving()


@pytest.fixture
def decoding() -> Any:
    """Two prompts are prefilled, in slots 0 and 2."""
    probe = serving()
    probe.prefill_forward(**prefill_call())
    return probe


def test_right_calls_pass_and_reach_the_adapter(decoding: Any) -> None:
    output = decoding.decode_forward(**decode_call())
    assert read(decoding, output, rows=[2, 0]).shape == (2, 1, 10)
    output = decoding.decode_forward(**stepped(device_decode_call()))
    assert read(decoding, output, is_tokens=True).tolist() == [0, 0, 0, 0]
    output = decoding.decode_forward(
        **stepped(decode_call(sampling_params=sampling(GRID), **STILL), 2)
        | {
            "page_table": _int32([1, 2, 5], [0, 0, 0], [3, 4, 0], [0, 0, 0]),
            "reload_page_table": True,
        }
    )
    read(decoding, output, is_tokens=True)
    decoding.release_request(2)
    assert decoding.model.released == [2]
    decoding.release_persistent_capture()
    assert decoding.breaches == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": torch.ones(2, 5)}, "tokens is torch.float32"),
        ({"tokens": torch.ones(2, 4, dtype=torch.int32)}, r"shape \(2, 4\)"),
        ({"tokens": torch.full((2, 5), 10, dtype=torch.int32)}, "outside the vocab"),
        ({"page_table": _int32([1, 2], [3, 0])}, r"page_table has shape \(2, 2\)"),
        ({"page_table": _int32([1, -1, 0], [3, 0, 0])}, "page_table row 0 holds -1"),
        ({"page_table": _int32([1, 20, 0], [3, 0, 0])}, "names block 20 of 20"),
        ({"page_table": _int32([1, 0, 0], [3, 0, 0])}, "the 2 blocks of its 5 tokens"),
        ({"page_table": _int32([1, 3, 0], [3, 0, 0])}, "rows 0 and 1 both write"),
        ({"kv_cache": object()}, "kv_cache is not what"),
        ({"enable_trace": False}, "1.6.*enable_trace is False"),
        ({"prompt_lens": torch.tensor([5, 3])}, "prompt_lens is Tensor"),
        ({"prompt_lens": np.array([5, 3], dtype=np.int32)}, "prompt_lens is int32"),
        ({"prompt_lens": np.array([5])}, r"not int64 \(2,\)"),
        ({"start_pos": _int32(0, 0)}, "start_pos is Tensor"),
        ({"start_pos": np.array([0, 3], dtype=np.int32)}, r"given tokens \[3, 3\)"),
        ({"start_pos": np.array([2, 0], dtype=np.int32)}, "inside a block of 4"),
        ({"empty_slots": [0, 0]}, "not different slots"),
        ({"empty_slots": [0, 4]}, "not different slots of 4"),
        ({"empty_slots": np.array([0, 2])}, "empty_slots is no list"),
        ({"page_tables_per_layer": []}, "no list of 1 tables"),
        ({"page_tables_per_layer": [LAYER[:2]]}, r"\[0\] has shape \(2, 3\)"),
        ({"page_tables_per_layer": [LAYER + 20]}, "a block outside the pool of 20"),
        ({"page_tables_per_layer": [LAYER + 1]}, "fills a row without a request"),
        ({"pixel_values": [None, None]}, r"\['pixel_values'\] not known"),
    ],
)
def test_prefills(probe: Any, changes: dict[str, Any], said: str) -> None:
    _refused(probe, "prefill_forward", prefill_call(**changes), said)


def test_a_missing_keyword_is_named(probe: Any) -> None:
    call = prefill_call()
    del call["empty_slots"]
    _refused(probe, "prefill_forward", call, r"\['empty_slots'\] missing")


def test_start_positions_are_torch_with_several_lanes() -> None:
    probe = serving(lanes=2)
    probe.prefill_forward(**prefill_call(start_pos=_int32(0, 0)))
    _refused(
        serving(lanes=2), "prefill_forward", prefill_call(), "start_pos is ndarray"
    )


def test_lanes_name_blocks_of_their_own() -> None:
    """Block ids repeat across lanes; slots 0 and 2 are in different ones."""
    table = _int32([1, 2, 0], [1, 0, 0])
    probe = serving(lanes=2)
    probe.prefill_forward(**prefill_call(page_table=table, start_pos=_int32(0, 0)))
    _refused(serving(), "prefill_forward", prefill_call(page_table=table), "both write")


def test_a_chunk_goes_on_where_the_last_one_ended(decoding: Any) -> None:
    def second(start: int) -> dict[str, Any]:
        return prefill_call(
            tokens=torch.ones(1, 8, dtype=torch.int32),
            page_table=_int32([1, 2, 0]),
            prompt_lens=np.array([8]),
            start_pos=np.array([start], dtype=np.int32),
            empty_slots=[0],
        )

    decoding.prefill_forward(**second(5))
    _refused(decoding, "prefill_forward", second(4), "has come to 8")


def test_a_prefill_must_not_land_on_a_live_slot(decoding: Any) -> None:
    _refused(decoding, "prefill_forward", prefill_call(), "held by a request")


class Modest(Standing):
    """Declares nothing, but has the methods."""

    model_capabilities: dict[str, Any] = {}


def test_what_is_not_declared_is_not_used() -> None:
    start = np.array([4, 0], dtype=np.int32)
    _refused(
        serving(Modest),
        "prefill_forward",
        prefill_call(start_pos=start),
        "without supports_prefix_caching",
    )
    probe = serving(Modest)
    probe.prefill_forward(**prefill_call())
    chunk = prefill_call(
        prompt_lens=np.array([6, 4]),
        tokens=torch.ones(2, 6, dtype=torch.int32),
        start_pos=np.array([5, 3], dtype=np.int32),
    )
    _refused(probe, "prefill_forward", chunk, "without supports_chunked_prefill")
    probe = serving(Modest)
    probe.prefill_forward(**prefill_call())
    _refused(
        probe, "decode_forward", device_decode_call(), "without supports_sample_on"
    )
    probe = serving(Modest)
    probe.prefill_forward(**prefill_call())
    output = probe.decode_forward(**decode_call())
    with pytest.raises(ContractBreach, match="needs supports_compact_host_logits"):
        read(probe, output, rows=[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": _int32([7], [1], [8], [0])}, "without a request has a token"),
        ({"start_pos": _int32(5, -2, 3, -1)}, "start_pos is below -1"),
        ({"start_pos": _int32(-1, -1, -1, -1)}, "has a token"),
        ({"start_pos": torch.tensor([5, -1, 3, -1])}, "start_pos is torch.int64"),
        (
            {"page_table": _int32([1, 2, 0], [4, 0, 0], [3, 0, 0], [0, 0, 0])},
            "without a request has a page table",
        ),
        (
            {"page_table": _int32([1, 2, -1], [0, 0, 0], [3, 0, 0], [0, 0, 0])},
            "row 0 holds -1",
        ),
        (
            {"page_table": _int32([1, 3, 0], [0, 0, 0], [3, 0, 0], [0, 0, 0])},
            "rows 0 and 2 both write into block 3",
        ),
        ({"tokens": _int32([7], [0], [10], [0])}, "outside the vocabulary"),
        (
            {"page_tables_per_layer": [torch.ones(4, 3, dtype=torch.int32)]},
            "fills a row without a request",
        ),
        ({"slot_remap": _int32(2, 1, 0, 3)}, "slot_remap moves a row"),
        ({"enable_trace": False}, "enable_trace is False"),
    ],
)
def test_decodes(decoding: Any, changes: dict[str, Any], said: str) -> None:
    _refused(decoding, "decode_forward", decode_call(**changes), said)


def test_a_number_of_rows_that_was_not_warmed_up(decoding: Any) -> None:
    call = decode_call()
    three = {name: call[name][:3] for name in ("tokens", "start_pos", "page_table")}
    _refused(
        decoding, "decode_forward", call | three, r"3 rows was not.*\[1, 2, 4\] were"
    )


def test_another_page_table_width_than_the_one_warmed_up(decoding: Any) -> None:
    call = decode_call()
    wider = torch.nn.functional.pad(call["page_table"], (0, 1))
    _refused(decoding, "decode_forward", call | {"page_table": wider}, r"\(4, 4\)")


def test_rows_that_nothing_was_prefilled_into(decoding: Any) -> None:
    decoding.release_request(2)
    _refused(decoding, "decode_forward", decode_call(), "nothing was prefilled there")


@pytest.mark.parametrize("reload", [RELOAD, RESET])
def test_a_skipped_position(decoding: Any, reload: dict[str, bool]) -> None:
    call = stepped(decode_call(**reload))
    _refused(decoding, "decode_forward", call, "position 6 but its KV ends at 5")


def test_steps_come_from_one_thread(decoding: Any) -> None:
    caught: list[BaseException] = []

    def step() -> None:
        try:
            decoding.decode_forward(**decode_call())
        except ContractBreach as breach:
            caught.append(breach)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert "second engine thread" in str(caught[0])


def test_only_slots_in_use_are_released(decoding: Any) -> None:
    with pytest.raises(ContractBreach, match="slot 1 holds no request"):
        decoding.release_request(1)


def test_nothing_comes_after_the_captures_are_released(decoding: Any) -> None:
    decoding.release_persistent_capture()
    _refused(decoding, "decode_forward", decode_call(), "after release_persistent")
    with pytest.raises(ContractBreach, match="after release_persistent"):
        decoding.release_persistent_capture()


def test_a_step_before_the_kv_cache() -> None:
    _refused(
        loaded(allocate=False), "prefill_forward", prefill_call(), "before the KV cache"
    )


def test_an_adapter_keeps_its_class_attributes_and_its_own_hooks() -> None:
    class Few:
        model_capabilities: dict[str, Any] = {}
        _HYBRID_KV_CACHE_GROUPS_ENABLED = True

        @classmethod
        def initialize_vllm_model(cls, *_: Any, **__: Any) -> Few:
            return cls()

        @classmethod
        def get_max_tokens_all_users(cls, **_: Any) -> int:
            return 77

        def allocate_kv_cache_per_layer(self, per_layer_specs: Any) -> object:
            return None

    probe = loaded(Few)
    made = type(probe)
    assert made.__name__ == "Few"
    assert made.get_max_tokens_all_users() == 77
    assert made._HYBRID_KV_CACHE_GROUPS_ENABLED  # noqa: SLF001 - the contract's name
    assert not hasattr(probe, "read_decode_output")
    assert not hasattr(probe, "allocate_kv_cache")
    assert hasattr(probe, "release_request")


def test_warm_up_flag_is_reset_on_the_adapter_itself() -> None:
    probe = loaded()
    probe.model.already_warmed_up_prefill = True
    assert probe.already_warmed_up_prefill
    probe.already_warmed_up_prefill = False
    assert probe.model.already_warmed_up_prefill is False
    probe.warmup_model_prefill(**warm_call())

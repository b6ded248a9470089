"""Warm-up, readback, reload and sampling calls that the contract does not allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from device_service.models.probe import ContractBreach
from tests.unit.device_service.models.probe.standing import (
    CACHE,
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
    warm_decode_call,
)


@pytest.fixture
def decoding() -> Any:
    """Two prompts are prefilled, in slots 0 and 2."""
    probe = serving()
    probe.prefill_forward(**prefill_call())
    return probe


# ------------------------------------------------------------------------- warm-up

P, D = "prefill", "decode"
PT, DT = "prefill traced", "decode traced"
PREPARE, CAPTURE = "prepare", "capture"

WARM: dict[str, Callable[[Any], Any]] = {
    P: lambda probe: probe.warmup_model_prefill(**warm_call()),
    D: lambda probe: probe.warmup_model_decode(**warm_decode_call()),
    PT: lambda probe: probe.warmup_model_prefill(**warm_call(enable_trace=True)),
    DT: lambda probe: probe.warmup_model_decode(**warm_decode_call(enable_trace=True)),
    PREPARE: lambda probe: probe.prepare_device_grammar_decode_trace_warmup(
        kv_cache=CACHE, max_batch_size=4, num_blocks=3
    ),
    CAPTURE: lambda probe: probe.capture_prepared_device_grammar_decode_trace(),
}


@pytest.mark.parametrize(
    "order", [[P, D], [P, D, DT], [P, D, PT, DT], [P, D, PREPARE, PT, CAPTURE, DT]]
)
def test_orders_of_warm_up(order: list[str]) -> None:
    probe = loaded()
    for name in order:
        WARM[name](probe)
    assert probe.breaches == []


@pytest.mark.parametrize(
    "order",
    [
        [D],
        [PT],
        [P, PT],
        [P, D, DT, PT],
        [P, D, P],
        [P, D, PT, D],
        [P, D, PT, CAPTURE, CAPTURE],
        [P, PREPARE],
    ],
)
def test_orders_that_compile_after_a_capture_or_skip_a_run(order: list[str]) -> None:
    probe = loaded()
    for name in order[:-1]:
        WARM[name](probe)
    with pytest.raises(ContractBreach, match="contract 1.6.*comes after"):
        WARM[order[-1]](probe)


def test_warm_up_after_the_first_step() -> None:
    probe = loaded()
    probe.prefill_forward(**prefill_call(enable_trace=False))
    with pytest.raises(ContractBreach, match="after the first step"):
        WARM[P](probe)


def test_warm_up_is_told_all_rows() -> None:
    probe = loaded()
    WARM[P](probe)
    with pytest.raises(ContractBreach, match="max_batch_size is 2, not 4"):
        probe.warmup_model_decode(**warm_decode_call(max_batch_size=2))


def test_grammar_is_enabled_before_the_kv_cache() -> None:
    probe = loaded(allocate=False)
    assert probe.enable_device_grammar()
    with pytest.raises(ContractBreach, match="after the KV cache"):
        loaded().enable_device_grammar()


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [((20, 1, 4), torch.float32, 0)],
        [((1, 1, 4, 8), torch.float32, 0)],
        [((20, 1, 4, 8), torch.float32, 0), ((20, 1, 8, 8), torch.float32, 1)],
    ],
)
def test_layers_that_cannot_be_allocated(specs: Any) -> None:
    with pytest.raises(ContractBreach, match=r"contract (1\.4|2\.20)"):
        loaded(allocate=False).allocate_kv_cache_per_layer(specs)


# ------------------------------------------------------------------------ readback


def test_an_output_is_read_and_processed_once(decoding: Any) -> None:
    output = decoding.decode_forward(**decode_call())
    host_output, _ = decoding.read_decode_output(output, async_read=True)
    with pytest.raises(ContractBreach, match="read before"):
        decoding.read_decode_output(output, async_read=True)
    decoding.process_decode_output_host(host_output, is_tokens=False)
    with pytest.raises(ContractBreach, match="processed before"):
        decoding.process_decode_output_host(host_output, is_tokens=False)


def test_an_output_is_asked_for_before_the_next_step(decoding: Any) -> None:
    decoding.decode_forward(**decode_call())
    with pytest.raises(ContractBreach, match="last step's output"):
        decoding.decode_forward(**stepped(decode_call()))


def test_two_steps_may_wait_to_be_processed(decoding: Any) -> None:
    first = decoding.decode_forward(**decode_call())
    first, _ = decoding.read_decode_output(first, async_read=True)
    second = decoding.decode_forward(**stepped(decode_call()))
    second, _ = decoding.read_decode_output(second, async_read=True)
    for output in (first, second):
        decoding.process_decode_output_host(output, is_tokens=False)
    assert decoding.breaches == []


def test_tokens_are_not_logits(decoding: Any) -> None:
    output = decoding.decode_forward(**decode_call())
    with pytest.raises(ContractBreach, match="sampled on the host"):
        read(decoding, output, is_tokens=True)


@pytest.mark.parametrize("rows", [[0, 0], [0, 1], (0, 2)])
def test_rows_that_cannot_be_read(decoding: Any, rows: Any) -> None:
    output = decoding.decode_forward(**decode_call())
    with pytest.raises(ContractBreach, match="sample_rows"):
        read(decoding, output, rows=rows)


def test_rows_are_frozen_when_they_are_transferred(decoding: Any) -> None:
    output = decoding.decode_forward(**decode_call())
    output, _ = decoding.read_decode_output(output, async_read=True, sample_rows=[2, 0])
    with pytest.raises(ContractBreach, match=r"\[0, 2\] are taken, but \(2, 0\)"):
        decoding.process_decode_output_host(output, is_tokens=False, sample_rows=[0, 2])


def _answering(answer: Any) -> Any:
    class Answering(Standing):
        def process_decode_output_host(self, *_: Any, **__: Any) -> Any:
            return answer

    probe = serving(Answering)
    probe.prefill_forward(**prefill_call())
    return probe


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("logits", "answers str"),
        (torch.zeros(4, 1, 9), r"\(4, 1, 9\), not logits of 4 rows by 10"),
        (torch.zeros(3, 1, 10), "not logits of 4 rows"),
        (torch.zeros(4, 1, 10, dtype=torch.int32), "answers torch.int32"),
    ],
)
def test_answers_that_are_not_logits(answer: Any, said: str) -> None:
    probe = _answering(answer)
    with pytest.raises(ContractBreach, match=said):
        read(probe, probe.decode_forward(**decode_call()))


@pytest.mark.parametrize(
    ("answer", "logprobs", "said"),
    [
        (torch.zeros(4), False, "not 4 token ids"),
        (torch.zeros(3, dtype=torch.int32), False, "not 4 token ids"),
        (torch.zeros(4, dtype=torch.int32), True, "no pair"),
    ],
)
def test_answers_that_are_not_tokens(answer: Any, said: str, *, logprobs: bool) -> None:
    probe = _answering(answer)
    params = sampling(
        GRID,
        num_logprobs=[0 if logprobs else -2, -2, -2, -2],
        enable_log_probs=[logprobs, False, False, False],
    )
    output = probe.decode_forward(**device_decode_call(sampling_params=params))
    with pytest.raises(ContractBreach, match=said):
        read(probe, output, is_tokens=True)


def test_an_adapter_without_a_reader_answers_host_tensors() -> None:
    class Blocking:
        model_capabilities: dict[str, Any] = {}
        decode_input_update_contract = 1

        @classmethod
        def initialize_vllm_model(cls, *_: Any, **__: Any) -> Blocking:
            return cls()

        allocate_kv_cache_per_layer = Standing.allocate_kv_cache_per_layer
        prefill_forward = Standing.prefill_forward
        decode_forward = Standing.decode_forward

    probe = loaded(Blocking)
    probe.prefill_forward(**prefill_call(enable_trace=False))
    with pytest.raises(ContractBreach, match="answers list, not a host tensor"):
        probe.decode_forward(**decode_call(enable_trace=False))


# -------------------------------------------------------------------------- reload


def _decode(probe: Any, call: dict[str, Any]) -> None:
    is_tokens = "sampling_params" in call
    read(probe, probe.decode_forward(**call), is_tokens=is_tokens)


STEADY = {"sampling_params": sampling(GRID), **STILL}


def _nothing(_: Any) -> None:
    pass


def _prefill_slot_one(probe: Any) -> None:
    probe.prefill_forward(
        **prefill_call(
            tokens=torch.ones(1, 2, dtype=torch.int32),
            page_table=torch.tensor([[9, 0, 0]], dtype=torch.int32),
            prompt_lens=prefill_call()["prompt_lens"][:1] * 0 + 2,
            start_pos=prefill_call()["start_pos"][:1],
            empty_slots=[1],
        )
    )


MOVED_TABLE = {
    "page_table": torch.tensor(
        [[1, 2, 5], [0, 0, 0], [3, 4, 0], [0, 0, 0]], dtype=torch.int32
    )
}


@pytest.mark.parametrize(
    ("between", "changes", "said"),
    [
        (_nothing, {"reset_batch": True}, "reset_batch for input contract 1"),
        (_nothing, {"reload_inputs": True, "reload_page_table": True}, "reload_page"),
        (_nothing, {"reset_sampling_state": True}, "without reload_inputs"),
        (_nothing, MOVED_TABLE, "the page tables changed"),
        (_prefill_slot_one, {}, "a prefill or a change of rows"),
        (
            _nothing,
            {"sampling_params": sampling(GRID, temperature=[0.7, 0.0, 0.5, 0.0])},
            "no reload_sampling_params although they changed",
        ),
    ],
)
def test_commands_that_leave_stale_things_on_the_device(
    decoding: Any, between: Callable[[Any], None], changes: dict[str, Any], said: str
) -> None:
    _decode(decoding, device_decode_call())
    _decode(decoding, stepped(decode_call(**STEADY)))
    between(decoding)
    with pytest.raises(ContractBreach, match=said):
        decoding.decode_forward(**stepped(decode_call(**STEADY), 2) | changes)


@pytest.mark.parametrize("commands", [STILL, RELOAD])
def test_what_is_new_after_host_sampling(
    decoding: Any, commands: dict[str, bool]
) -> None:
    _decode(decoding, decode_call())
    call = stepped(device_decode_call(**commands))
    with pytest.raises(ContractBreach, match=r"contract 1\.10.*(host|kept)"):
        decoding.decode_forward(**call)


def test_host_sampling_reloads_always(decoding: Any) -> None:
    with pytest.raises(ContractBreach, match="host sampling without reload_inputs"):
        decoding.decode_forward(**decode_call(**STILL))


def test_all_four_commands_come(decoding: Any) -> None:
    call = decode_call()
    del call["reload_page_table"]
    with pytest.raises(ContractBreach, match=r"only \['reload_inputs'"):
        decoding.decode_forward(**call)


class Legacy(Standing):
    """Of the older input contract."""

    decode_input_update_contract = 0


def _without_commands(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name not in RESET}


def test_the_older_contract_is_told_reset_batch_and_nothing_else() -> None:
    probe = serving(Legacy)
    probe.prefill_forward(**prefill_call())
    device = _without_commands(device_decode_call())
    for call, said in [
        (device_decode_call(), "for an adapter of input contract 0"),
        (device, "goes with device sampling"),
        (_without_commands(decode_call(reset_batch=True)), "goes with device"),
        (device | {"reset_batch": False}, "rows changed"),
    ]:
        with pytest.raises(ContractBreach, match=said):
            probe.decode_forward(**call)
    _decode(probe, device | {"reset_batch": True})
    _decode(probe, stepped(device) | {"reset_batch": False})
    _decode(probe, stepped(_without_commands(decode_call()), 2))


# ------------------------------------------------------------- sampling on the device


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("temperature", [0.5, 0.0, 0.5], "not a list of 4"),
        ("temperature", (0.5, 0.0, 0.5, 0.0), "not a list of 4"),
        ("temperature", [0.5, 0.1, 0.5, 0.0], r"temperature\[1\] is 0.1 in a row with"),
        ("top_p", [0.9, 0.0, 0.9, 1.0], r"top_p\[1\] is 0.0 in a row with"),
        ("seed", [None, 5, None, None], r"seed\[1\] is 5 in a row with"),
        ("top_k", [11, 1, 5, 1], "not within 1..10"),
        ("top_k", [0, 1, 5, 1], "not within 1..10"),
        ("top_k", [9, 1, 5, 1], "more than max_device_top_k 8"),
        ("top_k", [1, 1, 5, 1], r"top_p\[0\] is 0.9 beside top_k 1"),
        ("seed", [1 << 63, None, None, None], "signed 64-bit"),
        ("num_logprobs", [-1, -2, -2, -2], r"num_logprobs\[0\] is -1"),
        ("num_logprobs", [0, -2, -2, -2], r"enable_log_probs\[0\]"),
        ("presence_penalty", [0.5, 0.0, 0.0, 0.0], "no token history although a row"),
    ],
)
def test_sampling_parameters(decoding: Any, name: str, values: Any, said: str) -> None:
    params = sampling(GRID, **{name: values})
    with pytest.raises(ContractBreach, match=said):
        decoding.decode_forward(**device_decode_call(sampling_params=params))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (torch.full((4, 2), 3, dtype=torch.int64), "output_tokens is torch.int64"),
        (torch.full((3, 2), 3, dtype=torch.int32), "output_tokens has shape"),
        (torch.full((4, 2), 10, dtype=torch.int32), "token of the vocabulary"),
        (
            torch.tensor([[3, -1, 4]] * 4, dtype=torch.int32),
            "a token after its padding",
        ),
    ],
)
def test_token_histories(decoding: Any, output: torch.Tensor, said: str) -> None:
    params = sampling(GRID, repetition_penalty=[1.1, 1.0, 1.0, 1.0])
    history = {"prompt_tokens": torch.full((4, 3), -1, dtype=torch.int32)}
    call = device_decode_call(sampling_params=params, **history)
    with pytest.raises(ContractBreach, match=said):
        decoding.decode_forward(**call, output_tokens=output)


# ------------------------------------------------------------------- device grammar

MASK = torch.full((4, 1), -1, dtype=torch.int32)


def _deferred_call() -> dict[str, Any]:
    call = device_decode_call(defer_device_sampling=True)
    del call["sampling_params"]
    return call


def test_a_deferred_step_is_sampled_once_and_before_the_next(decoding: Any) -> None:
    deferred = decoding.decode_forward(**_deferred_call())
    with pytest.raises(ContractBreach, match="before the deferred step was sampled"):
        decoding.decode_forward(**stepped(decode_call()))
    arguments = {"sampling_params": sampling(GRID), "grammar_bitmask": MASK}
    output = decoding.sample_decode_on_device(deferred, **arguments)
    assert read(decoding, output, is_tokens=True).shape == (4,)
    with pytest.raises(ContractBreach, match="sampled before"):
        decoding.sample_decode_on_device(deferred, **arguments)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (MASK[:3], "grammar_bitmask has shape"),
        (MASK.long(), "grammar_bitmask is torch.int64"),
        (torch.tensor([[1], [1], [-1], [-1]], dtype=torch.int32), "is masked"),
    ],
)
def test_masks(decoding: Any, mask: torch.Tensor, said: str) -> None:
    deferred = decoding.decode_forward(**_deferred_call())
    with pytest.raises(ContractBreach, match=said):
        decoding.sample_decode_on_device(
            deferred, sampling_params=sampling(GRID), grammar_bitmask=mask
        )


def test_a_deferred_step_brings_both_histories_or_none(decoding: Any) -> None:
    history = torch.full((4, 3), -1, dtype=torch.int32)
    with pytest.raises(ContractBreach, match="prompt_tokens without the other"):
        decoding.decode_forward(**_deferred_call(), prompt_tokens=history)
    decoding.decode_forward(
        **_deferred_call(), prompt_tokens=history, output_tokens=history
    )


def test_a_deferred_step_has_no_parameters_yet(decoding: Any) -> None:
    call = device_decode_call(defer_device_sampling=True)
    with pytest.raises(ContractBreach, match="beside defer_device_sampling"):
        decoding.decode_forward(**call)

"""What the driver tells an adapter about sampling, and what it takes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from vllm.sampling_params import SamplingParams

from device_service.batch.inputs import DecodeInput, PrefillInput, StepSampling
from device_service.mesh.adapter_driver import AdapterDriver
from device_service.mesh.cpu import CpuMesh
from device_service.mesh.driver import LoadSpec, load_model
from device_service.mesh.interface import MeshPoisoned
from device_service.mesh.warm_up import DeviceSampling
from device_service.sampling.facts import PADDING, SamplingFacts
from tests.unit.device_service.mesh.contract_adapters import (
    VOCABULARY,
    NewAdapter,
    OldAdapter,
    row_logits,
)

ROWS = 4
CONFIG = LlamaConfig(
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    vocab_size=VOCABULARY,
)


def _tokens(rows: int) -> torch.Tensor:
    """Row r samples token r + 1."""
    return torch.arange(1, rows + 1)


class Sampling(NewAdapter):
    """Samples on the device when it is told how."""

    model_capabilities = {
        **NewAdapter.model_capabilities,
        "supports_sample_on_device": True,
        "supports_async_decode": True,
        "supports_device_grammar": True,
    }
    tt_supported_decode_batch_sizes = (ROWS,)
    device_grammar_enabled = False
    payload: Any = None

    def prefill_forward(self, **arguments: Any) -> Any:
        self.note("prefill", **arguments)
        rows = len(arguments["tokens"])
        return _tokens(rows) if "sampling_params" in arguments else row_logits(rows)

    def decode_forward(self, **arguments: Any) -> Any:
        self.note("decode", **arguments)
        rows = len(arguments["tokens"])
        if "sampling_params" not in arguments:
            return self.mesh.submit(lambda: row_logits(rows))
        if any(arguments["sampling_params"].enable_log_probs):
            return self.mesh.submit(lambda: (_tokens(rows), self.payload))
        return self.mesh.submit(lambda: _tokens(rows))

    def process_decode_output_host(
        self, tt_out: Any, *, is_tokens: bool, sample_rows: list[int] | None = None
    ) -> Any:
        self.note("process", is_tokens=is_tokens, sample_rows=sample_rows)
        output = tt_out.result()
        return output if sample_rows is None else output[sample_rows]

    def enable_device_grammar(self) -> bool:
        self.device_grammar_enabled = True
        return True

    def prepare_device_grammar_decode_trace_warmup(self, **_: Any) -> bool:
        return True

    def capture_prepared_device_grammar_decode_trace(self) -> None:
        self.note("capture grammar")

    def sample_decode_on_device(self, deferred_decode: Any, **arguments: Any) -> Any:
        self.note("sample", deferred=deferred_decode, **arguments)
        return self.mesh.submit(lambda: _tokens(ROWS))

    def poison_deferred_device_sampling(self) -> None:
        self.calls.append(("poison", {}))


Open = Callable[..., tuple[AdapterDriver, Any]]


@pytest.fixture
def open_driver() -> Iterator[Open]:
    mesh = CpuMesh()
    mesh.open()

    def open_(adapter: type[OldAdapter] = Sampling) -> tuple[AdapterDriver, Any]:
        made: list[OldAdapter] = []

        class Kept(adapter):  # type: ignore[valid-type,misc]
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                made.append(self)

        spec = LoadSpec(
            hf_config=CONFIG,
            model_path="/models/some",
            dtype=torch.float32,
            max_model_len=100,
            block_size=16,
            rows_per_lane=ROWS,
            device_sampling=DeviceSampling(prefill=True, decode=True, grammar=True),
        )
        return load_model(Kept, mesh, spec).allocate(50, 100), made[0]

    yield open_
    mesh.close()


def facts(**sampling: Any) -> SamplingFacts:
    return SamplingFacts.of(SamplingParams(**sampling), 3, VOCABULARY)


def _decode(
    sampling: StepSampling | None,
    rows: tuple[int, ...] = (0, 2),
    *,
    layout_changed: bool = False,
) -> DecodeInput:
    return DecodeInput(
        tokens=torch.zeros(ROWS, 1, dtype=torch.int32),
        positions=torch.zeros(ROWS, dtype=torch.int32),
        page_table=torch.zeros(ROWS, 7, dtype=torch.int32),
        sample_rows=rows,
        sampling=sampling,
        layout_changed=layout_changed,
    )


def _prefill(sampling: StepSampling | None) -> PrefillInput:
    return PrefillInput(
        tokens=torch.zeros(2, 5, dtype=torch.int32),
        page_table=torch.zeros(2, 7, dtype=torch.int32),
        prompt_lens=torch.full((2,), 5),
        start_pos=torch.zeros(2, dtype=torch.int32),
        slots=(0, 2),
        emits=(True, True),
        sampling=sampling,
    )


def _sampling(*rows: SamplingFacts, **more: Any) -> StepSampling:
    return StepSampling(tuple(rows), **more)


GREEDY = facts(temperature=0.0)
FOUR = _sampling(GREEDY, PADDING, facts(seed=-7, top_k=3), PADDING)


def test_parameters_are_lists_with_one_entry_per_row(open_driver: Open) -> None:
    driver, model = open_driver()
    row = facts(
        temperature=0.5,
        top_k=1,
        top_p=0.5,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.3,
        seed=-(2**63),
        logprobs=0,
    )
    model.payload = torch.zeros(ROWS)
    driver.decode(_decode(_sampling(PADDING, row, PADDING, PADDING))).result()
    params = model.last("decode")["sampling_params"]
    assert params.temperature == [0.0, 0.5, 0.0, 0.0]
    assert params.top_k == [1, 1, 1, 1]
    assert params.top_p == [1.0, 0.0, 1.0, 1.0]
    assert params.presence_penalty == [0.0, 0.1, 0.0, 0.0]
    assert params.frequency_penalty == [0.0, 0.2, 0.0, 0.0]
    assert params.repetition_penalty == [1.0, 1.3, 1.0, 1.0]
    assert params.seed == [None, -(2**63), None, None]
    assert params.num_logprobs == [-2, 0, -2, -2]
    assert params.enable_log_probs == [False, True, False, False]


def test_the_host_samples_without_parameters(open_driver: Open) -> None:
    driver, model = open_driver()
    result = driver.decode(_decode(None)).result()
    assert result.tokens is None
    assert result.logits is not None
    assert not {"sampling_params", "prompt_tokens"} & model.last("decode").keys()
    driver.prefill(_prefill(None)).result()
    assert "sampling_params" not in model.last("prefill")


def test_tokens_come_back_in_the_order_of_the_plan(open_driver: Open) -> None:
    driver, model = open_driver()
    result = driver.decode(_decode(FOUR, (3, 1))).result()
    assert result.logits is None
    assert result.tokens is not None
    assert result.tokens.tolist() == [4, 2]
    assert model.last("process") == {"is_tokens": True, "sample_rows": None}


def test_parameters_stay_the_same_while_the_rows_do(open_driver: Open) -> None:
    driver, model = open_driver()
    driver.decode(_decode(FOUR))
    first = model.last("decode")["sampling_params"]
    driver.decode(_decode(replace(FOUR, deferred=False)))
    assert model.last("decode")["sampling_params"] is first
    driver.decode(_decode(_sampling(*FOUR.rows[:3], GREEDY)))
    assert model.last("decode")["sampling_params"] is not first


def _commands(model: Any) -> list[bool]:
    call = model.last("decode")
    return [
        call[name]
        for name in (
            "reload_inputs",
            "reload_page_table",
            "reload_sampling_params",
            "reset_sampling_state",
        )
    ]


@pytest.mark.feature(108)
def test_a_steady_step_takes_nothing_anew(open_driver: Open) -> None:
    driver, model = open_driver()
    driver.decode(_decode(FOUR))
    assert _commands(model) == [True, False, True, True]
    driver.decode(_decode(FOUR))
    assert _commands(model) == [False, False, False, False]
    driver.decode(_decode(FOUR, layout_changed=True))
    assert _commands(model) == [True, False, True, True]
    driver.prefill(_prefill(None))
    driver.decode(_decode(FOUR))
    assert _commands(model) == [True, False, True, True]


def test_a_refused_step_leaves_its_change_of_layout_to_the_next(
    open_driver: Open,
) -> None:
    driver, model = open_driver()
    driver.decode(_decode(FOUR))
    model.fails = ValueError("not now")
    driver.decode(_decode(FOUR, layout_changed=True))
    model.fails = None
    driver.decode(_decode(FOUR))
    assert _commands(model) == [True, False, True, True]


def test_a_readback_that_fails_ends_what_is_resident(open_driver: Open) -> None:
    driver, model = open_driver()
    handle = driver.decode(_decode(FOUR))
    model.fails = OSError("link down")
    with pytest.raises(OSError, match="link down"):
        handle.result()
    model.fails = None
    driver.decode(_decode(FOUR))
    assert _commands(model) == [True, False, True, True]


class Legacy(Sampling):
    """Decides about its uploads itself."""

    decode_input_update_contract = 0


@pytest.mark.feature(112)
def test_a_legacy_adapter_hears_of_the_layout_alone(open_driver: Open) -> None:
    driver, model = open_driver(Legacy)
    for changed, reset in [(True, True), (False, False), (True, True)]:
        driver.decode(_decode(FOUR, layout_changed=changed))
        call = model.last("decode")
        assert call["reset_batch"] is reset
        assert not any(name.startswith("reload") for name in call)
    driver.decode(_decode(None))
    assert "reset_batch" not in model.last("decode")


@pytest.mark.feature(123)
def test_histories_go_with_penalties(open_driver: Open) -> None:
    driver, model = open_driver()
    prompts = torch.full((ROWS, 3), -1, dtype=torch.int32)
    outputs = torch.full((ROWS, 2), -1, dtype=torch.int32)
    driver.decode(
        _decode(replace(FOUR, prompt_tokens=prompts, output_tokens=outputs))
    ).result()
    assert model.last("decode")["prompt_tokens"] is prompts
    assert model.last("decode")["output_tokens"] is outputs


# -- log probabilities ---------------------------------------------------------


def _asking() -> StepSampling:
    return _sampling(GREEDY, facts(logprobs=2), GREEDY, GREEDY)


@pytest.mark.feature(125)
def test_a_pair_of_the_best_tokens(open_driver: Open) -> None:
    driver, model = open_driver()
    values = -torch.arange(ROWS * 32, dtype=torch.float32).view(ROWS, 32)
    token_ids = torch.arange(32).repeat(ROWS, 1)
    model.payload = (values, token_ids)
    result = driver.decode(_decode(_asking(), (1, 0))).result()
    assert result.logprobs is not None
    assert result.logprobs.token_ids is not None
    assert result.logprobs.values[:, 0].tolist() == [-32.0, 0.0]
    assert result.logprobs.token_ids.shape == (2, 32)


@pytest.mark.feature(126)
def test_one_value_per_row(open_driver: Open) -> None:
    driver, model = open_driver()
    model.payload = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    result = driver.decode(_decode(_asking(), (3, 1))).result()
    assert result.logprobs is not None
    assert result.logprobs.token_ids is None
    assert result.logprobs.values.tolist() == [[-4.0], [-2.0]]


class Forgetful(Sampling):
    """Answers tokens alone, whatever was asked for."""

    def decode_forward(self, **arguments: Any) -> Any:
        return self.mesh.submit(lambda: _tokens(ROWS))


def test_logprobs_that_do_not_come_are_an_error(open_driver: Open) -> None:
    driver, _ = open_driver(Forgetful)
    with pytest.raises(TypeError, match="tokens, logprobs"):
        driver.decode(_decode(_asking())).result()


def test_a_pair_that_nobody_asked_for_is_reduced_to_its_tokens(
    open_driver: Open,
) -> None:
    class Talkative(Sampling):
        def decode_forward(self, **arguments: Any) -> Any:
            return self.mesh.submit(lambda: (_tokens(ROWS), None))

    driver, _ = open_driver(Talkative)
    result = driver.decode(_decode(FOUR)).result()
    assert result.tokens is not None
    assert result.tokens.tolist() == [1, 3]


def test_prefill_samples_one_token_per_prompt(open_driver: Open) -> None:
    driver, model = open_driver()
    result = driver.prefill(_prefill(_sampling(GREEDY, facts(seed=9)))).result()
    assert result.tokens is not None
    assert result.tokens.tolist() == [1, 2]
    assert model.last("prefill")["sampling_params"].seed == [None, 9]


# -- compact and selective readback --------------------------------------------


class Selective(Sampling):
    """Transfers only what was asked for."""

    model_capabilities = {
        **Sampling.model_capabilities,
        "supports_selective_host_readback": True,
    }

    def read_decode_output(
        self, tt_out: Any, *, async_read: bool, sample_rows: list[int] | None = None
    ) -> Any:
        self.note("read", sample_rows=sample_rows)
        return super().read_decode_output(tt_out, async_read=async_read)


class Plain(Sampling):
    """Knows neither."""

    model_capabilities = {
        **Sampling.model_capabilities,
        "supports_compact_host_logits": False,
    }


@pytest.mark.feature(129)
@pytest.mark.parametrize(
    ("adapter", "processed", "transferred"),
    [
        (Plain, None, None),
        (Sampling, [2, 0], None),
        (Selective, [2, 0], [2, 0]),
    ],
)
def test_rows_are_named_where_the_adapter_takes_them(
    open_driver: Open,
    adapter: type[Sampling],
    processed: list[int] | None,
    transferred: list[int] | None,
) -> None:
    driver, model = open_driver(adapter)
    result = driver.decode(_decode(None, (2, 0))).result()
    assert result.logits is not None
    assert result.logits[:, 0].tolist() == [2.0, 0.0]
    assert model.last("process")["sample_rows"] == processed
    if transferred is not None:
        assert model.last("read")["sample_rows"] == transferred
    assert model.last("decode")["read_from_device"] is False


@pytest.mark.feature(129)
@pytest.mark.parametrize("adapter", [Sampling, Selective])
def test_no_rows_are_named_when_the_device_samples(
    open_driver: Open, adapter: type[Sampling]
) -> None:
    driver, model = open_driver(adapter)
    driver.decode(_decode(FOUR)).result()
    assert model.last("process")["sample_rows"] is None
    if adapter is Selective:
        assert model.last("read")["sample_rows"] is None


@pytest.mark.feature(129)
def test_another_number_of_rows_is_an_error(open_driver: Open) -> None:
    class Short(Sampling):
        def process_decode_output_host(self, tt_out: Any, **_: Any) -> Any:
            return tt_out.result()[:1]

    driver, _ = open_driver(Short)
    with pytest.raises(ValueError, match="1 rows where 2"):
        driver.decode(_decode(None, (2, 0))).result()


# -- grammar on the device -----------------------------------------------------

DEFERRED = replace(FOUR, deferred=True)
MASK = np.array([[5], [6]], dtype=np.int32)


@pytest.mark.feature(131, 132)
def test_the_mask_comes_after_the_forward_in_rows_of_the_batch(
    open_driver: Open,
) -> None:
    driver, model = open_driver()
    handle = driver.decode(_decode(DEFERRED, (2, 0)))
    call = model.last("decode")
    assert call["defer_device_sampling"] is True
    assert "sampling_params" not in call
    assert "sample" not in model.names()
    submitted = time.monotonic()
    result = driver.sample_deferred(handle, MASK).result()
    assert result.began <= submitted <= result.ended
    sample = model.last("sample")
    assert sample["grammar_bitmask"].tolist() == [[6], [-1], [5], [-1]]
    assert sample["grammar_bitmask"].dtype == torch.int32
    assert sample["sampling_params"].seed == [None, None, -7, None]
    assert result.tokens is not None
    assert result.tokens.tolist() == [3, 1]


def test_other_handles_pass_through(open_driver: Open) -> None:
    driver, model = open_driver()
    model.fails = ValueError("bad step")
    handle = driver.decode(_decode(DEFERRED))
    assert driver.sample_deferred(handle, MASK) is handle
    with pytest.raises(ValueError, match="bad step"):
        handle.result()


@pytest.mark.feature(135)
@pytest.mark.parametrize("mask", [None, MASK[:1]], ids=["missing", "short"])
def test_a_mask_that_does_not_come_is_final(
    open_driver: Open, mask: np.ndarray | None
) -> None:
    driver, model = open_driver()
    handle = driver.sample_deferred(driver.decode(_decode(DEFERRED)), mask)
    with pytest.raises(MeshPoisoned, match="grammar masks"):
        handle.result()
    assert model.names().count("poison") == 1
    assert "sample" not in model.names()
    calls = len(model.calls)
    for later in (driver.decode(_decode(FOUR)), driver.prefill(_prefill(None))):
        with pytest.raises(MeshPoisoned):
            later.result()
    assert len(model.calls) == calls


@pytest.mark.feature(135)
def test_sampling_that_fails_under_a_mask_is_final(open_driver: Open) -> None:
    driver, model = open_driver()
    handle = driver.sample_deferred(driver.decode(_decode(DEFERRED)), MASK)
    model.fails = RuntimeError("no memory")
    with pytest.raises(MeshPoisoned, match="no memory"):
        handle.result()
    assert model.names().count("poison") == 1


# -- what is enabled -----------------------------------------------------------


class Unwilling(Sampling):
    """Loaded with something that keeps it from masking."""

    def enable_device_grammar(self) -> bool:
        return False


@pytest.mark.feature(134)
@pytest.mark.parametrize(("adapter", "enabled"), [(Sampling, True), (Unwilling, False)])
def test_grammar_needs_the_loaded_model_and_a_warm_up(
    open_driver: Open, adapter: type[Sampling], enabled: bool
) -> None:
    driver, model = open_driver(adapter)
    assert driver.device_grammar is False
    driver.warm_up(lambda _: None)
    assert driver.device_grammar is enabled
    assert model.last("warm decode").get("can_sample_device_grammar", False) is enabled

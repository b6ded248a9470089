"""What is refused at start, and what is adjusted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import VllmConfig

from device_service.engine_flags import CHECKED, REFUSED, SERVED
from device_service.models.capabilities import Capabilities
from device_service.startup_checks import (
    ADJUSTMENTS,
    LAUNCH_CHECKS,
    MODEL_CHECKS,
    adjust,
    check_launch,
    check_model,
)
from device_service.startup_rules import Candidate
from tests.support.candidates import EVERYTHING, candidate, launch
from ttserve.errors import StartupError

REFUSED_LAUNCHES: list[tuple[str, str, list[str], str]] = [
    ("tensor parallelism", "cpu", ["-tp", "2"], "--tensor-parallel-size 2"),
    ("pipeline parallelism", "cpu", ["--pipeline-parallel-size=4"], "MESH_DEVICE"),
    ("LoRA", "cpu", ["--enable-lora"], "--enable-lora"),
    (
        "speculation",
        "cpu",
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'],
        "--speculative-config",
    ),
    (
        "KV connector",
        "cpu",
        [
            "--kv-transfer-config",
            '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
        ],
        "--kv-transfer-config",
    ),
    (
        "KV events",
        "cpu",
        ["--kv-events-config", '{"enable_kv_cache_events": true}'],
        "--kv-events-config",
    ),
    ("pooling runner", "cpu", ["--runner", "pooling"], "--runner pooling"),
    (
        "grammar backend",
        "cpu",
        ["--structured-outputs-config.backend", "guidance"],
        "always xgrammar",
    ),
    (
        "reasoning parser",
        "cpu",
        ["--reasoning-parser", "telepathy"],
        "--reasoning-parser telepathy: vLLM knows no parser of that name",
    ),
    (
        "reasoning parser",
        "cpu",
        ["--structured-outputs-config.reasoning_parser", "telepathy"],
        "vLLM knows no parser of that name",
    ),
    ("images", "cpu", ["--limit-mm-per-prompt", '{"image": 2}'], "text only"),
    (
        "images",
        "cpu",
        ["--limit-mm-per-prompt", '{"video": {"count": 1}}'],
        "text only",
    ),
    ("one token per block", "cpu", ["--block-size", "0"], "--block-size 0"),
    (
        "one block per prefill step",
        "cpu",
        ["--max-num-batched-tokens", "63"],
        "--max-num-batched-tokens 63 is less than one block of --block-size 64",
    ),
    (
        "a lane",
        "sim",
        ["--data-parallel-size", "0"],
        "--data-parallel-size 0: must be at least 1",
    ),
    (
        "threshold of what is not split",
        "cpu",
        ["--no-enable-chunked-prefill", "--long-prefill-token-threshold", "512"],
        "--long-prefill-token-threshold 512 splits prompts, --no-enable-chunked-",
    ),
    (
        "memory for traces",
        "ttnn",
        [
            "--additional-config",
            '{"tt": {"trace_mode": "none", "trace_region_size": 1}}',
        ],
        "tt option trace_region_size: with trace_mode none there are no traces",
    ),
    ("null block and another", "sim", ["--num-gpu-blocks-override", "1"], "at least 2"),
    (
        "pool of the model's own size",
        "ttnn",
        ["--num-gpu-blocks-override", "9"],
        "ttnn",
    ),
    ("pool of the model's own size", "ttnn", ["--kv-cache-fraction", "0.5"], "ttnn"),
    ("pool without bytes", "sim", ["--kv-cache-memory-bytes", "1g"], "mesh sim"),
    ("pool without bytes", "sim", ["--kv-cache-fraction", "0.5"], "mesh sim"),
    (
        "compatible sampling",
        "sim",
        ["--additional-config.tt.always_compat_sampling", "true"],
        "always_compat_sampling: true is not supported",
    ),
    (
        "test models",
        "cpu",
        ["--additional-config.tt.register_test_models", "true"],
        "register_test_models: mesh cpu has none",
    ),
    (
        "simulated latency",
        "cpu",
        ["--additional-config.tt.sim.decode_ms=1"],
        "mesh cpu",
    ),
    (
        "hardware options",
        "sim",
        [
            "--additional-config",
            '{"tt": {"fabric_config": "FABRIC_1D", "optimizations": "accuracy"}}',
        ],
        "tt option optimizations, fabric_config: mesh sim has no use for it",
    ),
]


@pytest.mark.feature(16, 17, 18, 26)
@pytest.mark.parametrize(("name", "mesh", "arguments", "says"), REFUSED_LAUNCHES)
def test_refused_launches(
    name: str, mesh: str, arguments: list[str], says: str
) -> None:
    with pytest.raises(StartupError) as caught:
        check_launch(launch(mesh, *arguments))
    (line,) = str(caught.value).splitlines()
    assert says in line
    (check,) = (check for check in LAUNCH_CHECKS if check.name == name)
    assert check.wrong(launch(mesh, *arguments))


def test_every_launch_check_is_in_the_table_above() -> None:
    assert {row[0] for row in REFUSED_LAUNCHES} == {c.name for c in LAUNCH_CHECKS}


@pytest.mark.parametrize("mesh", ["cpu", "sim", "ttnn"])
def test_the_defaults_pass(mesh: str) -> None:
    check_launch(launch(mesh))


@pytest.mark.parametrize(
    ("mesh", "arguments"),
    [
        ("cpu", ["--no-async-scheduling", "--no-enable-prefix-caching"]),
        ("cpu", ["-tp", "1", "-dp", "1", "--enforce-eager", "--max-num-seqs", "1"]),
        ("cpu", ["--kv-cache-memory-bytes", "1g", "--scheduling-policy", "priority"]),
        ("cpu", ["--structured-outputs-config.backend", "xgrammar"]),
        ("cpu", ["--limit-mm-per-prompt", '{"image": 0}']),
        ("cpu", ["--reasoning-parser", "qwen3"]),
        ("cpu", ["--reasoning-parser", "mine", "--reasoning-parser-plugin", "my.py"]),
        ("cpu", ["--additional-config.tt.seeded_sampling_policy", "host"]),
        ("cpu", ["--additional-config.tt.trace_mode", "none"]),
        ("sim", ["--additional-config.tt.sim.decode_ms", "12.5"]),
        ("sim", ["--num-gpu-blocks-override", "100"]),
        ("ttnn", ["--additional-config.tt.fabric_config", "FABRIC_1D"]),
    ],
)
def test_what_is_served_passes(mesh: str, arguments: list[str]) -> None:
    check_launch(launch(mesh, *arguments))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu-memory-utilization", "0.5"], "--kv-cache-fraction"),
        (["--scheduler-cls", "a.B"], "WatchSteps"),
        (["--stream-interval", "4"], "it belongs to the frontend"),
        (["--cpu-offload-gb", "1"], "the mesh keeps its own memory"),
        (["-cc.mode", "3"], "--compilation-config is not supported"),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype is not supported"),
        (["--max-num-queued-reqs", "7"], "use --max-queued-requests"),
        (["--data-parallel-rank", "1"], "TT_VISIBLE_DEVICES"),
    ],
)
def test_vllm_options_without_a_meaning_here(arguments: list[str], says: str) -> None:
    with pytest.raises(StartupError) as caught:
        check_launch(launch("cpu", *arguments))
    (line,) = str(caught.value).splitlines()
    assert says in line


def test_every_problem_gets_its_line() -> None:
    with pytest.raises(StartupError) as caught:
        check_launch(launch("cpu", "-tp", "2", "--enable-lora", "--nnodes", "2"))
    assert len(str(caught.value).splitlines()) == 3


def test_no_option_is_on_two_lists() -> None:
    assert not SERVED & CHECKED
    assert not (SERVED | CHECKED) & REFUSED.keys()


# -- the model ----------------------------------------------------------------


def scheduler_facts(vllm_config: VllmConfig) -> tuple[bool, int, int, bool]:
    scheduler = vllm_config.scheduler_config
    return (
        scheduler.enable_chunked_prefill,
        scheduler.max_num_batched_tokens,
        scheduler.long_prefill_token_threshold,
        scheduler.disable_chunked_mm_input,
    )


def test_a_capable_model_is_left_alone() -> None:
    it = candidate(EVERYTHING, "--long-prefill-token-threshold", "512")
    check_model(it)
    assert adjust(it) == []
    assert scheduler_facts(it.vllm_config) == (True, 2048, 512, True)
    assert it.vllm_config.cache_config.enable_prefix_caching is True


@pytest.mark.edge(1, 6, 7)
@pytest.mark.feature(73, 74)
def test_a_model_that_cannot_split_prompts_takes_them_whole() -> None:
    it = candidate(Capabilities(supports_prefix_caching=True), "--max-model-len=4096")
    check_model(it)
    notes = adjust(it)
    assert scheduler_facts(it.vllm_config) == (False, 4096, 0, False)
    assert len(notes) == 3
    assert "2048 raised to max_model_len 4096" in notes[1]


@pytest.mark.feature(73)
def test_a_budget_that_is_large_enough_stays() -> None:
    it = candidate(
        Capabilities(), "--max-num-batched-tokens=5000", "--max-model-len=4096"
    )
    notes = adjust(it)
    assert scheduler_facts(it.vllm_config)[1] == 5000
    assert [note.split(":")[0] for note in notes] == [
        "prefix caching off",
        "chunked prefill off",
        "asynchronous scheduling off",
    ]


@pytest.mark.feature(73, 74)
@pytest.mark.edge(1, 7)
def test_chunked_prefill_off_by_choice_is_no_adjustment() -> None:
    it = candidate(EVERYTHING, "--no-enable-chunked-prefill", "--max-model-len=1024")
    assert adjust(it) == []
    assert scheduler_facts(it.vllm_config)[:3] == (False, 2048, 0)


@pytest.mark.feature(57)
def test_prefix_caching_goes_where_nothing_can_resume() -> None:
    it = candidate(replace(EVERYTHING, supports_prefix_caching=False))
    check_model(it)
    (note,) = adjust(it)
    assert note.startswith("prefix caching off")
    assert it.vllm_config.cache_config.enable_prefix_caching is False


@pytest.mark.feature(106)
def test_decode_overlap_goes_where_the_model_takes_one_step_at_a_time() -> None:
    it = candidate(replace(EVERYTHING, supports_async_decode=False))
    check_model(it)
    assert adjust(it) == [
        "asynchronous scheduling off: LlamaForCausalLM decodes one step at a time"
    ]
    assert it.scheduler.async_scheduling is False


@pytest.mark.feature(20)
def test_too_many_logprobs_are_limited() -> None:
    it = candidate(EVERYTHING, "--max-logprobs", "50")
    assert adjust(it) == ["max_logprobs 50 changed to 20"]
    assert it.model.max_logprobs == 20


REFUSED_MODELS: list[tuple[str, Capabilities, list[str], str]] = [
    (
        "chunked prefill",
        Capabilities(supports_prefix_caching=True),
        ["--enable-chunked-prefill"],
        "--enable-chunked-prefill: LlamaForCausalLM on mesh sim cannot split",
    ),
    (
        "prefix caching",
        Capabilities(supports_chunked_prefill=True),
        ["--enable-prefix-caching"],
        "--enable-prefix-caching: LlamaForCausalLM on mesh sim cannot resume",
    ),
    ("block output", Capabilities(output_tokens_per_step=256), [], "several tokens"),
    (
        "asynchronous decode",
        Capabilities(),
        ["--async-scheduling"],
        "--async-scheduling: LlamaForCausalLM on mesh sim decodes one step at a time",
    ),
    (
        "device sampling",
        Capabilities(),
        ["--additional-config.tt.sample_on_device_mode", "decode_only"],
        "sample_on_device_mode: LlamaForCausalLM on mesh sim cannot sample on the "
        "device; leave it out",
    ),
    (
        "threshold of what cannot be split",
        Capabilities(supports_prefix_caching=True),
        ["--long-prefill-token-threshold", "512"],
        "--long-prefill-token-threshold: LlamaForCausalLM on mesh sim cannot split",
    ),
    (
        "budget of a whole prompt",
        Capabilities(),
        ["--max-num-batched-tokens", "2048", "--max-model-len", "4096"],
        "--max-num-batched-tokens 2048: prompts are prefilled whole, so a step must "
        "take max_model_len 4096; raise it or leave it out",
    ),
]


@pytest.mark.feature(16, 74)
@pytest.mark.edge(6)
@pytest.mark.parametrize(("name", "capabilities", "arguments", "says"), REFUSED_MODELS)
def test_refused_models(
    name: str, capabilities: Capabilities, arguments: list[str], says: str
) -> None:
    it = candidate(capabilities, *arguments)
    with pytest.raises(StartupError) as caught:
        check_model(it)
    (line,) = str(caught.value).splitlines()
    assert says in line
    (check,) = (check for check in MODEL_CHECKS if check.name == name)
    assert check.wrong(it)


REFUSED_KINDS: list[tuple[str, dict[str, Any], str]] = [
    (
        "encoder-decoder",
        {"is_encoder_decoder": True},
        "Some is an encoder-decoder model; only decoder-only",
    ),
    ("pooling", {"runner_type": "pooling"}, "Some does not generate text"),
    ("state-space layers", {"has_inner_state": True}, "mesh cpu does not serve them"),
    ("state-space layers", {"is_attention_free": True}, "a state instead of keys"),
    ("rope of each request", {"uses_mrope": True}, "Some turns positions in a way"),
    ("quantized weights", {"quantization": "awq"}, "Some is quantized (awq)"),
]


@pytest.mark.feature(16, 18, 91)
@pytest.mark.parametrize(("name", "facts", "says"), REFUSED_KINDS)
def test_kinds_of_models_that_are_refused(
    name: str, facts: dict[str, Any], says: str
) -> None:
    """vLLM takes seconds to find these facts out, so here they are just said."""
    plain: dict[str, Any] = {
        "architectures": ["Some"],
        "is_encoder_decoder": False,
        "runner_type": "generate",
        "has_inner_state": False,
        "is_attention_free": False,
        "quantization": None,
        "uses_mrope": False,
        "max_model_len": 512,
        "max_logprobs": 20,
    }
    scheduler = SimpleNamespace(enable_chunked_prefill=True, max_num_batched_tokens=512)
    for model, problems in ((plain, []), (plain | facts, [name])):
        vllm_config: Any = SimpleNamespace(
            model_config=SimpleNamespace(**model), scheduler_config=scheduler
        )
        it = Candidate(launch("cpu"), vllm_config, EVERYTHING)
        assert [check.name for check in MODEL_CHECKS if check.wrong(it)] == problems
    with pytest.raises(StartupError, match=re.escape(says)):
        check_model(it)


def test_every_model_check_is_in_a_table_above() -> None:
    shown = {row[0] for row in (*REFUSED_MODELS, *REFUSED_KINDS)}
    assert shown == {check.name for check in MODEL_CHECKS}


ADJUSTED = [
    ("log probabilities", EVERYTHING, ["--max-logprobs", "50"]),
    ("prefix caching", Capabilities(supports_chunked_prefill=True), []),
    ("chunked prefill", Capabilities(supports_prefix_caching=True), []),
    ("budget of a whole prompt", Capabilities(supports_prefix_caching=True), []),
    ("asynchronous decode", Capabilities(), []),
    ("images in one chunk", EVERYTHING, []),
]


@pytest.mark.feature(15)
@pytest.mark.parametrize(("name", "capabilities", "arguments"), ADJUSTED)
def test_adjusting_twice_changes_nothing(
    name: str, capabilities: Capabilities, arguments: list[str]
) -> None:
    it = candidate(capabilities, *arguments)
    (adjustment,) = (a for a in ADJUSTMENTS if a.name == name)
    assert adjustment.needed(it)
    adjust(it)
    # What vLLM's platform has limited stays to be said.
    assert adjustment.needed(it) is (adjustment.apply is None)


def test_every_adjustment_is_in_the_table_above() -> None:
    assert [row[0] for row in ADJUSTED] == [a.name for a in ADJUSTMENTS]


def test_paths_are_not_models(tmp_path: Path) -> None:
    from device_service.model_source import find_model

    (tmp_path / "model.gguf").write_bytes(b"")
    for model, says in (
        (str(tmp_path / "nowhere"), "no such directory"),
        ("./nowhere", "no such directory"),
        ("a/b/c", "no such directory"),
        (str(tmp_path / "model.gguf"), "is a file"),
        (str(tmp_path), "has no config.json"),
    ):
        with pytest.raises(StartupError) as caught:
            find_model(launch("cpu", "--model", model), print)
        assert f"--model {model}: " in str(caught.value)
        assert says in str(caught.value)

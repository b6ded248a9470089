"""From what was asked for to what is served, without opening a mesh."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vllm.model_executor.models import ModelRegistry

from device_service.__main__ import _early_options
from device_service.config import Environment, parse_args
from device_service.data_parallel import runs_as_lanes
from device_service.describe import bundle_of, describe
from device_service.effective import effective_configuration
from device_service.kv.memory import free_memory_bytes
from device_service.mesh.factory import make_mesh
from device_service.mesh.interface import Mesh
from device_service.mesh.sim import SimMesh
from device_service.plugin import register_models
from device_service.pool import kv_bytes_per_token
from device_service.resolve import Resolved, resolve
from tools.options_doc import DOCUMENT, render
from ttserve.errors import StartupError
from ttserve.sim_model import sim_model_dir

GALAXY = {"TT_LLAMA_TEXT_VER": "llama3_70b_galaxy", "MESH_DEVICE": "TG"}


def resolved(*arguments: str, **environ: str) -> tuple[Resolved, Mesh]:
    argv = arguments if "--mesh" in arguments else ("--mesh", "sim", *arguments)
    config = parse_args(argv, environ)
    mesh = make_mesh(
        config.mesh,
        {"mesh_device": config.environment.mesh_device, "sim": config.tt.sim},
    )
    return resolve(config, mesh, print), mesh


def changed_model(path: Path, **changes: Any) -> str:
    shutil.copytree(sim_model_dir(), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    return str(path)


def test_vllm_is_told_what_was_decided() -> None:
    it, _ = resolved("--max-model-len", "1000", "--max-num-seqs", "4")
    vllm_config = it.vllm_config
    assert vllm_config.cache_config.num_gpu_blocks == it.pool.num_blocks == 65
    assert vllm_config.cache_config.block_size == 64
    assert vllm_config.model_config.max_model_len == 1000
    assert vllm_config.scheduler_config.max_num_seqs == 4
    assert vllm_config.scheduler_config.async_scheduling is True
    assert vllm_config.structured_outputs_config.backend == "xgrammar"
    assert vllm_config.structured_outputs_config.disable_any_whitespace
    assert vllm_config.parallel_config.data_parallel_size == 1


@pytest.mark.edge(44)
@pytest.mark.feature(49, 50)
def test_minus_one_fits_the_sequence_to_the_pool() -> None:
    it, mesh = resolved("--max-model-len", "-1", "--num-gpu-blocks-override", "65")
    assert it.vllm_config.model_config.max_model_len == 64 * 64
    assert describe(it, mesh, "").max_sequence_tokens == 64 * 64


@pytest.mark.feature(49)
def test_omitted_is_the_models_own_length() -> None:
    it, _ = resolved()
    own = json.loads((sim_model_dir() / "config.json").read_text())
    assert it.pool.max_model_len == own["max_position_embeddings"]


def test_the_cpu_pool_takes_a_quarter_of_free_memory_at_most() -> None:
    sim = str(sim_model_dir())
    it, _ = resolved("--mesh", "cpu", "--model", sim)
    assert 0 < it.pool.total_bytes <= free_memory_bytes() * 0.3
    given, _ = resolved("--mesh", "cpu", "--model", sim, "--kv-cache-memory-bytes=9m")
    per_block = 64 * kv_bytes_per_token(given.vllm_config)
    assert given.pool.num_blocks == 9_000_000 // per_block
    assert given.pool.origin == "--kv-cache-memory-bytes"


LLAMA = {"llama_version": "llama3_70b_galaxy"}
QWEN3 = {"qwen3_version": "qwen3_32b_galaxy"}


@pytest.mark.feature(80, 81)
@pytest.mark.parametrize(
    ("architecture", "versions", "folds"),
    [
        ("LlamaForCausalLM", LLAMA, True),
        ("LlamaForCausalLM", QWEN3, False),
        ("LlamaForCausalLM", {"llama_version": "tt_transformers"}, False),
        ("Qwen3ForCausalLM", QWEN3, True),
        ("Qwen3ForCausalLM", LLAMA, False),
        ("Qwen2ForCausalLM", QWEN3, False),
        ("GptOssForCausalLM", {}, True),
        ("MistralForCausalLM", LLAMA | QWEN3, False),
    ],
)
def test_three_kinds_of_models_run_as_lanes(
    architecture: str, versions: dict[str, Any], *, folds: bool
) -> None:
    assert runs_as_lanes(architecture, Environment(**versions)) is folds


@pytest.mark.feature(81)
def test_folding_twice_gives_the_same() -> None:
    arguments = ("--data-parallel-size", "4", "--max-num-seqs", "8")
    (first, _), (second, _) = (
        resolved(*arguments, **GALAXY),
        resolved(*arguments, **GALAXY),
    )
    assert first.shape == second.shape
    assert first.pool == second.pool


@pytest.mark.feature(80)
def test_data_parallel_size_folds_into_lanes() -> None:
    it, mesh = resolved("--data-parallel-size", "4", "--max-num-seqs", "8", **GALAXY)
    description = describe(it, mesh, "")
    assert (it.shape.lanes, it.shape.rows_per_lane) == (4, 8)
    assert it.vllm_config.scheduler_config.max_num_seqs == 32
    assert description.scheduling.total_rows == 32
    assert description.limits.max_queued_requests == 128
    assert (description.mesh.rows, description.mesh.columns) == (8, 4)


@pytest.mark.feature(81)
@pytest.mark.parametrize("environ", [{}, {"TT_QWEN3_TEXT_VER": "qwen3_32b_galaxy"}])
def test_other_models_do_not_run_as_lanes(environ: dict[str, str]) -> None:
    with pytest.raises(StartupError, match="does not run as lanes of one mesh"):
        resolved("--data-parallel-size", "4", **environ)


@pytest.mark.slow  # vLLM inspects each class in a process of its own
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {
                "architectures": ["MambaForCausalLM"],
                "model_type": "mamba",
                "state_size": 16,
                "time_step_rank": 4,
            },
            "MambaForCausalLM has layers with a state",
        ),
        (
            {
                "architectures": ["WhisperForConditionalGeneration"],
                "model_type": "whisper",
            },
            "is an encoder-decoder model",
        ),
        (
            {"architectures": ["BertModel"], "model_type": "bert"},
            "BertModel cannot be served",
        ),
    ],
)
@pytest.mark.timeout(300)
def test_other_kinds_of_models_are_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    model = changed_model(tmp_path / "model", **changes)
    with pytest.raises(StartupError, match=says) as caught:
        resolved("--mesh", "cpu", "--model", model)
    assert "\n" not in str(caught.value)


def test_the_description() -> None:
    it, mesh = resolved(
        "--served-model-name",
        "first",
        "second",
        "--override-generation-config",
        '{"top_k": 32}',
        "--scheduling-policy=priority",
        "--max-queued-requests=7",
        "--reasoning-parser=qwen3",
    )
    description = describe(it, mesh, "")
    assert description.served_names == ("first", "second")
    assert description.generation_defaults["top_k"] == 32
    assert description.scheduling.policy == "priority"
    assert description.scheduling.chunked_prefill
    assert not description.scheduling.async_decode  # the host samples
    assert description.limits.max_queued_requests == 7
    assert description.settings.reasoning_parser == "qwen3"
    assert description.settings.structured_output_backend == "xgrammar"
    assert description.eos_token_ids
    assert all(0 <= i < description.vocab_size for i in description.eos_token_ids)


def test_the_served_name_is_never_the_path_of_a_cache() -> None:
    it, mesh = resolved()
    assert describe(it, mesh, "").served_names == ("ttserve-sim",)
    typed = str(sim_model_dir())
    it, mesh = resolved("--model", typed)
    assert describe(it, mesh, "").served_names == (typed,)


def test_the_fingerprint_tells_different_services_apart() -> None:
    it, mesh = resolved("--max-model-len", "1024")
    same, _ = resolved("--max-model-len", "1024")
    longer, _ = resolved("--max-model-len", "2048")
    # What is free when a service starts decides how many blocks it has.
    more = dataclasses.replace(it.pool, num_blocks=it.pool.num_blocks + 1)
    roomier = dataclasses.replace(it, pool=more)
    prints = [
        describe(it, mesh, "a").fingerprint,
        describe(same, mesh, "a").fingerprint,
        describe(roomier, mesh, "a").fingerprint,
        describe(longer, mesh, "a").fingerprint,
        describe(it, mesh, "b").fingerprint,
    ]
    assert prints[0] == prints[1] == prints[2]
    assert len(set(prints)) == 3


def test_the_bundle_carries_what_frontends_need() -> None:
    it, _ = resolved("--hf-overrides", '{"rope_theta": 12345.0}')
    files = {file.name: file.data for file in bundle_of(it).files}
    assert {"config.json", "tokenizer.json", "vllm_modelinfo.json"} <= files.keys()
    assert b"12345.0" in files["config.json"]
    assert json.loads(files["config.json"])["architectures"] == ["LlamaForCausalLM"]


def test_a_tokenizer_from_elsewhere_replaces_the_models_own(tmp_path: Path) -> None:
    model = changed_model(tmp_path / "model", rope_theta=54321.0)
    other = changed_model(tmp_path / "other")
    tokenizer = tmp_path / "other" / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"mine": 1}))
    it, _ = resolved("--model", model, "--tokenizer", other)
    files = {file.name: file.data for file in bundle_of(it).files}
    assert b"mine" in files["tokenizer_config.json"]
    assert b"54321.0" in files["config.json"]


def test_the_printed_block_has_no_secret() -> None:
    it, mesh = resolved("--hf-token", "hf_secret", "--max-logprobs", "50")
    text = effective_configuration(it, describe(it, mesh, ""))
    assert "hf_secret" not in text
    for part in ("ttserve-sim", "32 requests at a time", "16385 blocks", "fcfs"):
        assert part in text
    assert "adjusted: max_logprobs 50 changed to 20" in text


@pytest.mark.feature(78)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "chunked prefill      on, budget 2048 tokens a step, threshold none"),
        (
            ["--max-num-batched-tokens=512", "--long-prefill-token-threshold=256"],
            "chunked prefill      on, budget 512 tokens a step, threshold 256",
        ),
        (
            ["--no-enable-chunked-prefill", "--max-model-len=1024"],
            "chunked prefill      off, budget 2048",
        ),
    ],
)
def test_the_printed_block_says_whether_prompts_are_split(
    arguments: list[str], says: str
) -> None:
    it, mesh = resolved(*arguments)
    assert says in effective_configuration(it, describe(it, mesh, ""))


@pytest.mark.feature(15)
def test_resolving_twice_gives_the_same() -> None:
    arguments = ("--max-logprobs=50", "--max-model-len=-1", "--max-num-seqs=4")
    (first, mesh), (second, _) = resolved(*arguments), resolved(*arguments)
    assert first.pool == second.pool
    assert first.notes == second.notes
    assert describe(first, mesh, "") == describe(second, mesh, "")


@pytest.mark.feature(16)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data-parallel-size", "4"], "--data-parallel-size 4"),
        (["--num-gpu-blocks-override", "5"], "does not fit --num-gpu-blocks-override"),
        (["--max-model-len", "99999999"], "max_model_len"),
    ],
)
def test_what_only_the_model_shows_is_rejected_before_the_mesh_opens(
    arguments: list[str], says: str
) -> None:
    class NeverOpened(SimMesh):
        def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
            raise AssertionError("the mesh was opened")

    config = parse_args(["--mesh", "sim", *arguments], {})
    with pytest.raises(StartupError, match=says) as caught:
        resolve(config, NeverOpened(), print)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        ([], None),
        (["--model", "a/b"], "a/b"),
        (["--model=a/b"], "a/b"),
        (["--model"], None),
        (["--config", "{yaml}"], "from/yaml"),
        (["--config={yaml}", "--model", "a/b"], "a/b"),
        (["--config", "/nowhere"], None),
    ],
)
def test_the_model_is_known_before_anything_is_parsed(
    arguments: list[str], model: str | None, tmp_path: Path
) -> None:
    (tmp_path / "options.yaml").write_text("model: from/yaml\n")
    yaml = str(tmp_path / "options.yaml")
    given = _early_options([a.replace("{yaml}", yaml) for a in arguments])
    assert (given["--model"] or None) == model


def test_the_document_of_options_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == render(), "run python tools/options_doc.py"


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ([], "the host samples"),
        (["--additional-config.tt.sample_on_device_mode", "all"], ""),
        (
            [
                *("--additional-config.tt.sample_on_device_mode", "decode_only"),
                *("--additional-config.tt.trace_mode", "none"),
            ],
            "there are no traces",
        ),
        (
            [
                *("--additional-config.tt.sample_on_device_mode", "all"),
                "--no-async-scheduling",
            ],
            "asynchronous scheduling is off",
        ),
    ],
)
def test_whether_decode_steps_can_overlap(options: list[str], waits: str) -> None:
    mesh = make_mesh("sim", {})
    it = resolve(parse_args(["--mesh", "sim", *options], {}), mesh, lambda _: None)
    assert it.steps_wait_because == waits
    assert describe(it, mesh, "").scheduling.async_decode is (waits == "")


@pytest.mark.feature(6)
def test_an_architecture_that_only_a_bundle_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM has no class for it; frontends hear of it by the checkpoint's name."""
    bundle = tmp_path / "bundles" / "unheard"
    bundle.mkdir(parents=True)
    metadata = {"arch": "UnheardForCausalLM", "main_class": "unheard:Unheard"}
    (bundle / "vllm_metadata.json").write_text(json.dumps(metadata))
    environ = {"EXTRA_MODELS_DIR": str(bundle.parent)}
    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("EXTRA_MODELS_DIR", environ["EXTRA_MODELS_DIR"])
    register_models()
    model = changed_model(tmp_path / "model", architectures=["UnheardForCausalLM"])
    it, mesh = resolved("--model", model, **environ)
    assert describe(it, mesh, "").architecture == "UnheardForCausalLM"
    assert str(bundle) in sys.path


@pytest.mark.feature(10)
def test_an_override_chooses_the_adapter_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_adapter.py").write_text(
        "from device_service.models.sim_adapter import SimAdapter\n"
        "class Own(SimAdapter):\n"
        "    model_capabilities = {'max_device_top_k': 7}\n"
    )
    it, _ = resolved(TT_MODEL_CLASS_OVERRIDES="LlamaForCausalLM=own_adapter:Own")
    assert it.adapter.__name__ == "Own"
    assert it.capabilities.max_device_top_k == 7


@pytest.mark.feature(5)
def test_an_unknown_version_is_told_before_a_model_is_looked_for() -> None:
    with pytest.raises(StartupError, match="^TT_QWEN3_TEXT_VER=x"):
        resolved("--model", "/nowhere", TT_QWEN3_TEXT_VER="x")

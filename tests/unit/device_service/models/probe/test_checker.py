"""`python -m device_service.models.probe` on adapters that are right and wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from device_service.mesh.driver import TraceMode
from device_service.mesh.factory import make_mesh
from device_service.models.probe.__main__ import main
from device_service.models.probe.report import Report, Setup, run_checks
from device_service.models.sim_adapter import SimAdapter
from device_service.models.transformers_adapter import TransformersAdapter
from tests.tiny_models import write_tiny_model
from tests.unit.device_service.models.probe import broken_adapters
from ttserve.sim_model import sim_model_dir

HERE = "tests.unit.device_service.models.probe.broken_adapters"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    write_tiny_model("llama", directory)
    return directory


def _report(
    adapter: type[Any], directory: Path, mesh: str, **changes: Any
) -> tuple[Report, list[str]]:
    values: dict[str, Any] = {
        "hf_config": AutoConfig.from_pretrained(directory),
        "directory": directory,
        "dtype": torch.float32,
        "rows": 4,
        "lanes": 1,
        "block_size": 16,
        "max_model_len": 128,
        "trace_mode": TraceMode.ALL,
        "tolerance": 1e-3,
    }
    lines: list[str] = []
    report = Report(lines.append)
    opened = make_mesh(mesh, {})
    opened.open()
    try:
        run_checks(adapter, opened, Setup(**values | changes), report)
    finally:
        opened.close()
    return report, lines


@pytest.mark.feature(38)
@pytest.mark.parametrize("mode", TraceMode)
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("mesh", ["cpu", "sim"])
def test_the_generic_adapters_pass_every_check(
    llama: Path, mesh: str, lanes: int, mode: TraceMode
) -> None:
    adapter = TransformersAdapter if mesh == "cpu" else SimAdapter
    directory = llama if mesh == "cpu" else sim_model_dir()
    report, lines = _report(adapter, directory, mesh, lanes=lanes, trace_mode=mode)
    assert [line for line in lines if "BROKEN" in line] == []
    assert (report.passed, report.broken, report.left_out) == (14, 0, 0)


@pytest.mark.parametrize("shape", [{"rows": 1}, {"rows": 3, "block_size": 1}])
def test_small_shapes_can_be_checked(shape: dict[str, int]) -> None:
    report, lines = _report(SimAdapter, sim_model_dir(), "sim", **shape)
    assert report.broken == 0, lines


BROKEN = [
    ("IgnoresSampleRows", "rows beside each other", "row 3 beside others: after"),
    ("WrongVocabulary", "a request, twice", "contract 1.8: process_decode_output_host"),
    ("StartsOver", "a prompt in chunks", "the prompt: after step 0"),
    ("StartsOver", "a cached prefix", "a prompt whose first blocks are cached"),
    ("KnowsNoCommands", "a request, twice", "TypeError"),
    ("TrustsTheHost", "greedy on the device", "greedy on the device gives"),
    ("TrustsTheHost", "a step ahead of its readback", "steps ahead of their readback"),
    ("ReadsLate", "a step ahead of its readback", "steps ahead of their readback"),
    ("OneBuffer", "what was read stays", "change with the next step"),
    ("SeesItsRow", "a seed on the device", "one seed gives"),
    (
        "CannotLoad",
        "loading",
        "OSError in CannotLoad.initialize_vllm_model: no weights",
    ),
]


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[str, list[str]]]:
    """What is said about each broken adapter."""
    names = {name for name, _, _ in BROKEN}
    yield {
        name: _report(getattr(broken_adapters, name), sim_model_dir(), "sim")[1]
        for name in names
    }


@pytest.mark.parametrize(("name", "check", "said"), BROKEN)
def test_a_broken_adapter_is_told_what_it_broke(
    reports: dict[str, list[str]], name: str, check: str, said: str
) -> None:
    broken = [line for line in reports[name] if line.startswith("  BROKEN")]
    assert any(
        line.startswith(f"  BROKEN  {check}") and said in line for line in broken
    ), reports[name]
    assert "\n" not in "".join(broken)


def test_a_fault_breaks_what_it_touches_and_nothing_else(
    reports: dict[str, list[str]],
) -> None:
    counts = {
        name: sum("BROKEN" in line for line in lines) for name, lines in reports.items()
    }
    assert counts["IgnoresSampleRows"] == 1
    assert counts["StartsOver"] == 2
    assert counts["SeesItsRow"] == counts["ReadsLate"] == 1
    assert counts["OneBuffer"] >= 1
    assert reports["CannotLoad"] == reports["CannotLoad"][:1]


def test_what_is_not_declared_is_left_out() -> None:
    report, lines = _report(broken_adapters.Plain, sim_model_dir(), "sim")
    assert report.broken == 0, lines
    assert report.left_out == 6
    assert "  -       a prompt in chunks: supports_chunked_prefill is not declared" in (
        lines
    )


# ------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["nobody_has_this:Adapter"], 2, "No module named 'nobody_has_this'"),
        ([f"{HERE}:Missing"], 2, "has no attribute 'Missing'"),
        ([f"{HERE}:torch"], 2, "is not a class"),
        ([HERE], 2, "is not MODULE:CLASS"),
        ([f"{HERE}:Plain", "--model", "/nowhere"], 2, "--model /nowhere"),
        ([f"{HERE}:Plain", "--rows", "0"], 2, "--rows must be at least 1"),
        ([f"{HERE}:Plain", "--block-size", "64"], 2, "--max-model-len must be at"),
    ],
)
def test_what_cannot_be_tried(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert main(arguments) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("name", "status", "last"),
    [
        ("Plain", 0, "8 passed, 0 broken, 6 left out"),
        ("SeesItsRow", 1, "13 passed, 1 broken, 0 left out"),
    ],
)
def test_the_command_reports_and_ends_with_its_status(
    capsys: pytest.CaptureFixture[str], name: str, status: int, last: str
) -> None:
    assert main([f"{HERE}:{name}", "--mesh", "sim"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert f"{HERE}:{name} on mesh sim: 1 lane(s) of 4 rows" in lines[0]
    assert lines[-1] == last


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "docs/MODEL_CONTRACT.md" in text
    assert "transformers_adapter:TransformersAdapter" in text

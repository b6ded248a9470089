"""docs/MODEL_CONTRACT.md says what the code does, and its example works."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from device_service.models.capabilities import Capabilities
from device_service.models.contract import DecodeCall, PrefillCall, TTSamplingParams
from device_service.models.probe.__main__ import main
from device_service.models.sim_adapter import SimAdapter
from device_service.models.transformers_adapter import TransformersAdapter

TEXT = (Path(__file__).parents[4] / "docs" / "MODEL_CONTRACT.md").read_text()


def _section(title: str) -> str:
    (found,) = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S
    )
    return str(found)


def _rows(title: str) -> list[list[str]]:
    """The cells of a section's tables, without headings."""
    lines = [line for line in _section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _names(title: str) -> set[str]:
    return {name for row in _rows(title) for name in re.findall(r"`(\w+)`", row[0])}


def _shown(value: object) -> str:
    return "none" if value == frozenset() else str(value)


def test_every_capability_is_listed_with_its_default_and_ours() -> None:
    default, cpu, sim = (
        Capabilities(),
        Capabilities.of(TransformersAdapter),
        Capabilities.of(SimAdapter),
    )
    listed = {row[0].strip("`"): row[1:4] for row in _rows("Capabilities")}
    assert listed == {
        field.name: [_shown(getattr(c, field.name)) for c in (default, cpu, sim)]
        for field in fields(Capabilities)
    }


@pytest.mark.parametrize(
    ("title", "call"), [("Prefill (1.7)", PrefillCall), ("Decode (1.8)", DecodeCall)]
)
def test_every_keyword_is_listed(title: str, call: type) -> None:
    assert _names(title) == set(call.__required_keys__ | call.__optional_keys__)  # type: ignore[attr-defined]


def test_every_sampling_parameter_is_listed() -> None:
    names = {field.name for field in fields(TTSamplingParams)}
    assert _names("Sampling on the device (1.5)") == names


@pytest.mark.parametrize("lanes", ["1", "2"])
@pytest.mark.parametrize("mode", ["all", "none"])
def test_the_example_passes_the_probe(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lanes: str,
    mode: str,
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", _section("An example"), re.S)
    (tmp_path / "bag_of_tokens_example.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    named = "bag_of_tokens_example:BagOfTokens"
    status = main([named, "--lanes", lanes, "--trace-mode", mode])
    said = capsys.readouterr().out
    assert "BROKEN" not in said
    assert said.splitlines()[-1] == "10 passed, 0 broken, 4 left out"
    assert status == 0


def test_links_inside_the_document_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.*)$", TEXT, re.M)
    anchors = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", TEXT)) <= anchors

"""Which adapter class serves an architecture, and who may say so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_service.config import Environment
from device_service.models.registry import (
    AdapterRegistry,
    Origin,
    adapter_registry,
    resolve_adapter,
)
from device_service.models.transformers_adapter import TransformersAdapter
from tests.support.tt_metal import write_class
from ttserve.errors import StartupError

# The families that the Tenstorrent plugin's README lists for vLLM 0.30.
FAMILIES = {
    "TTLlamaForCausalLM",
    "TTMllamaForConditionalGeneration",
    "TTQwen2ForCausalLM",
    "TTQwen3ForCausalLM",
    "TTQwen3_5ForConditionalGeneration",
    "TTQwen2_5_VLForConditionalGeneration",
    "TTQwen3VLForConditionalGeneration",
    "TTMistralForCausalLM",
    "TTMistral3ForConditionalGeneration",
    "TTGemma3ForConditionalGeneration",
    "TTGemma4ForCausalLM",
    "TTGemma4ForConditionalGeneration",
    "TTGemma4UnifiedForConditionalGeneration",
    "TTDiffusionGemmaForBlockDiffusion",
    "TTDiffusionGemmaForCausalLM",
    "TTDeepseekV3ForCausalLM",
    "TTGptOssForCausalLM",
}
DIFFUSION = {name for name in FAMILIES if name.startswith("TTDiffusionGemma")}


@pytest.fixture(autouse=True)
def restored_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports from its own folders is gone after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def registry(**environ: str) -> AdapterRegistry:
    return adapter_registry(Environment.read(environ))


def write_bundle(directory: Path, metadata: object, path: str | None = None) -> None:
    directory.mkdir(parents=True)
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    (directory / "vllm_metadata.json").write_text(text)
    if path is not None:
        write_class(directory, path)


@pytest.mark.feature(4)
def test_every_family_has_an_adapter_that_nobody_imported() -> None:
    targets = registry().targets
    assert set(targets) == FAMILIES
    assert {target.origin for target in targets.values()} == {Origin.BUILT_IN}
    assert not [name for name in sys.modules if name.split(".")[0] == "models"]


@pytest.mark.feature(4)
def test_adapters_are_found_at_the_paths_of_tt_metal(tmp_path: Path) -> None:
    """All of them, each its own class, in a tree that has just these."""
    targets = registry().targets
    for path in {target.path for target in targets.values()}:
        write_class(tmp_path, path)
    sys.path.append(str(tmp_path))
    for name, target in targets.items():
        found = resolve_adapter(name, "ttnn", registry())
        assert f"{found.__module__}:{found.__qualname__}" == target.path
        assert found.__module__.startswith("models.")


@pytest.mark.feature(4)
def test_paths_that_tt_metals_own_recipes_name() -> None:
    targets = registry().targets
    gemma = "models.demos.gemma4.tt.generator_vllm:Gemma4ForCausalLM"
    assert targets["TTGemma4ForCausalLM"].path == gemma
    assert targets["TTGemma4UnifiedForConditionalGeneration"].path == gemma
    llama = "models.tt_transformers.tt.generator_vllm:LlamaForCausalLM"
    assert targets["TTLlamaForCausalLM"].path == llama
    # Lanes follow from this very name (contract 2.17).
    assert targets["TTGptOssForCausalLM"].path.endswith(":GptOssForCausalLM")


@pytest.mark.feature(5)
@pytest.mark.parametrize(
    ("variable", "value", "architecture", "module"),
    [
        ("TT_LLAMA_TEXT_VER", "tt_transformers", "TTLlamaForCausalLM", "tt_transf"),
        ("TT_LLAMA_TEXT_VER", "llama3_70b_galaxy", "TTLlamaForCausalLM", "galaxy"),
        ("TT_LLAMA_TEXT_VER", "llama2_70b", "TTLlamaForCausalLM", "llama2_70b"),
        ("TT_LLAMA_TEXT_VER", "llama31_8b_qb2", "TTLlamaForCausalLM", "8b_qb2"),
        ("TT_QWEN3_TEXT_VER", "tt_transformers", "TTQwen3ForCausalLM", "tt_transf"),
        ("TT_QWEN3_TEXT_VER", "qwen3_32b_galaxy", "TTQwen3ForCausalLM", "galaxy"),
        (
            "TT_QWEN35_TEXT_VER",
            "qwen36_blackhole",
            "TTQwen3_5ForConditionalGeneration",
            "blackhole.qwen36",
        ),
    ],
)
def test_a_version_changes_its_family_and_no_other(
    variable: str, value: str, architecture: str, module: str
) -> None:
    chosen, usual = registry(**{variable: value}).targets, registry().targets
    assert module in chosen[architecture].path
    others = FAMILIES - {architecture}
    assert {it: chosen[it] for it in others} == {it: usual[it] for it in others}


@pytest.mark.feature(5)
@pytest.mark.parametrize(
    ("variable", "known"),
    [
        ("TT_LLAMA_TEXT_VER", "llama3_70b_galaxy"),
        ("TT_QWEN3_TEXT_VER", "qwen3_32b_galaxy"),
        ("TT_QWEN35_TEXT_VER", "qwen36_blackhole"),
    ],
)
def test_an_unknown_version_is_refused_by_name(variable: str, known: str) -> None:
    with pytest.raises(StartupError, match=f"^{variable}=newest: .*{known}"):
        registry(**{variable: "newest"})


@pytest.mark.feature(3)
@pytest.mark.parametrize("name", ["FooForCausalLM", "TTFooForCausalLM"])
def test_an_unknown_architecture_is_answered_with_the_known(name: str) -> None:
    with pytest.raises(StartupError) as caught:
        resolve_adapter(name, "ttnn", registry())
    message = str(caught.value)
    assert message.startswith("no adapter serves TTFooForCausalLM on mesh ttnn")
    assert all(known in message for known in FAMILIES)
    assert "\n" not in message


@pytest.mark.feature(3)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "TTLlamaForCausalLM"])
def test_on_the_cpu_mesh_the_same_names_are_served_by_transformers(name: str) -> None:
    assert resolve_adapter(name, "cpu", registry()) is TransformersAdapter


def test_an_adapter_that_cannot_be_imported() -> None:
    with pytest.raises(StartupError, match=r"No module named 'models'.*PYTHONPATH"):
        resolve_adapter("LlamaForCausalLM", "ttnn", registry())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Other: ...", "has no attribute"),
        ("raise RuntimeError('no\\ndevice')", "no device"),
        ("Mine = 3", "is not a class"),
        ("class Mine(:", "invalid syntax"),
    ],
)
def test_a_module_that_does_not_hold_the_adapter(
    tmp_path: Path, source: str, reason: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    sys.path.append(str(tmp_path))
    chosen = registry(TT_MODEL_CLASS_OVERRIDES="XForCausalLM=broken:Mine")
    with pytest.raises(StartupError, match=reason) as caught:
        resolve_adapter("XForCausalLM", "ttnn", chosen)
    assert "\n" not in str(caught.value)


@pytest.mark.feature(6)
@pytest.mark.parametrize("arch", ["SolarForCausalLM", "TTSolarForCausalLM"])
def test_a_bundle_is_served(tmp_path: Path, arch: str) -> None:
    """It brings its own module, and one that it needs."""
    folder = tmp_path / "solar"
    write_bundle(folder, {"arch": arch, "main_class": "solar:Solar", "more": 1})
    (folder / "solar.py").write_text("from helper_of_solar import Solar\n")
    write_class(folder, "helper_of_solar:Solar")
    chosen = registry(EXTRA_MODELS_DIR=str(tmp_path))
    chosen.activate()
    assert resolve_adapter("SolarForCausalLM", "ttnn", chosen).__name__ == "Solar"
    assert not chosen.warnings


@pytest.mark.feature(6)
def test_a_bundle_wins_over_the_built_in_table(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"arch": "LlamaForCausalLM", "main_class": "m.b:B"})
    write_bundle(tmp_path / "a", {"arch": "LlamaForCausalLM", "main_class": "m.a:A"})
    chosen = registry(EXTRA_MODELS_DIR=str(tmp_path))
    assert chosen.targets["TTLlamaForCausalLM"].path == "m.a:A"
    assert [it for it in chosen.warnings if "bundle b" in it and "m.a:A" in it]
    assert set(chosen.targets) == FAMILIES


@pytest.mark.feature(7)
@pytest.mark.parametrize(
    "metadata",
    [
        "{",
        "[]",
        "\udcff",
        {"arch": "XForCausalLM"},
        {"main_class": "m:X"},
        {"arch": "", "main_class": "m:X"},
        {"arch": "X Y", "main_class": "m:X"},
        {"arch": 3, "main_class": "m:X"},
        {"arch": "XForCausalLM", "main_class": "m.X"},
        {"arch": "XForCausalLM", "main_class": "m:"},
        {"arch": "XForCausalLM", "main_class": ["m:X"]},
    ],
)
def test_a_broken_bundle_is_skipped_with_a_warning(
    tmp_path: Path, metadata: object
) -> None:
    broken = tmp_path / "broken"
    if metadata == "\udcff":
        broken.mkdir()
        (broken / "vllm_metadata.json").write_bytes(b"\xff\xfe\x00")
    else:
        write_bundle(broken, metadata)
    write_bundle(tmp_path / "good", {"arch": "YForCausalLM", "main_class": "m:Y"})
    chosen = registry(EXTRA_MODELS_DIR=str(tmp_path))
    assert set(chosen.targets) == FAMILIES | {"TTYForCausalLM"}
    (warning,) = chosen.warnings
    assert str(broken) in warning
    assert "\n" not in warning


@pytest.mark.feature(7)
def test_a_directory_that_is_none(tmp_path: Path) -> None:
    chosen = registry(EXTRA_MODELS_DIR=str(tmp_path / "nowhere"))
    assert set(chosen.targets) == FAMILIES
    assert "not a directory" in chosen.warnings[0]


def test_folders_and_files_that_are_no_bundles_are_none(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "README").touch()
    assert registry(EXTRA_MODELS_DIR=str(tmp_path)) == registry()


@pytest.mark.feature(8)
def test_an_installed_package_wins_over_a_bundles_own(tmp_path: Path) -> None:
    """Here one of the standard library's."""
    path = "colorsys:hls_to_rgb"
    write_bundle(
        tmp_path / "x", {"arch": "XForCausalLM", "main_class": path}, "colorsys:Shadow"
    )
    chosen = registry(EXTRA_MODELS_DIR=str(tmp_path))
    chosen.activate()
    assert sys.path[-1] == str(tmp_path / "x")
    import colorsys

    assert not hasattr(colorsys, "Shadow")


@pytest.mark.feature(9)
@pytest.mark.parametrize("value", ["0", "false", "NO", " off "])
def test_without_the_built_in_table(value: str, tmp_path: Path) -> None:
    write_bundle(tmp_path / "y", {"arch": "YForCausalLM", "main_class": "m:Y"})
    chosen = registry(
        TT_VLLM_BUILTIN_MODELS=value,
        TT_MODEL_CLASS_OVERRIDES="XForCausalLM=m:X",
        EXTRA_MODELS_DIR=str(tmp_path),
    )
    assert set(chosen.targets) == DIFFUSION | {"TTXForCausalLM", "TTYForCausalLM"}


@pytest.mark.feature(9)
@pytest.mark.parametrize("value", ["", "1", "true", "yes"])
def test_the_built_in_table_stays(value: str) -> None:
    assert set(registry(TT_VLLM_BUILTIN_MODELS=value).targets) == FAMILIES


@pytest.mark.feature(10)
@pytest.mark.parametrize("mesh", ["ttnn", "cpu", "sim"])
def test_an_override_wins_over_all_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mesh: str
) -> None:
    write_bundle(tmp_path / "b", {"arch": "LlamaForCausalLM", "main_class": "m.b:B"})
    write_class(tmp_path, "chosen_adapter:Chosen")
    sys.path.append(str(tmp_path))
    chosen = registry(
        TT_MODEL_CLASS_OVERRIDES="TTLlamaForCausalLM=chosen_adapter:Chosen",
        EXTRA_MODELS_DIR=str(tmp_path),
    )
    with caplog.at_level("INFO", "device_service.models.registry"):
        chosen.activate()
    assert resolve_adapter("LlamaForCausalLM", mesh, chosen).__name__ == "Chosen"
    assert (
        "Applied TT_MODEL_CLASS_OVERRIDES: TTLlamaForCausalLM -> chosen_adapter:Chosen"
        in caplog.messages
    )


@pytest.mark.feature(11)
def test_overrides_take_bare_names() -> None:
    chosen = registry(
        TT_MODEL_CLASS_OVERRIDES=" AForCausalLM = a.b:A , TTBForCausalLM=b:B,"
    )
    assert chosen.targets["TTAForCausalLM"].path == "a.b:A"
    assert chosen.targets["TTBForCausalLM"].path == "b:B"
    assert "AForCausalLM" not in chosen.targets


@pytest.mark.feature(11)
@pytest.mark.parametrize(
    "value",
    [
        "AForCausalLM",
        "AForCausalLM=a.b.A",
        "AForCausalLM=a:",
        "AForCausalLM=:A",
        "AForCausalLM=a..b:A",
        "AForCausalLM=a:b:A",
        "=a:A",
        "B=b:B,AForCausalLM=a/b:A",
    ],
)
def test_a_malformed_override_is_an_error(value: str) -> None:
    with pytest.raises(
        StartupError, match=r"^TT_MODEL_CLASS_OVERRIDES: .*Architecture=module"
    ):
        registry(TT_MODEL_CLASS_OVERRIDES=value)


@pytest.mark.feature(11)
def test_overrides_that_contradict_each_other() -> None:
    with pytest.raises(StartupError, match="TTAForCausalLM twice; .*a:A or a:B"):
        registry(TT_MODEL_CLASS_OVERRIDES="AForCausalLM=a:A,TTAForCausalLM=a:B")


@pytest.mark.feature(12)
def test_registering_twice_changes_nothing(tmp_path: Path) -> None:
    write_bundle(tmp_path / "y", {"arch": "YForCausalLM", "main_class": "m:Y"})
    environ = {
        "EXTRA_MODELS_DIR": str(tmp_path),
        "TT_MODEL_CLASS_OVERRIDES": "XForCausalLM=m:X",
    }
    first = registry(**environ)
    first.activate()
    after_first = list(sys.path)
    second = registry(**environ)
    second.activate()
    assert second == first
    assert sys.path == after_first
    assert sys.path.count(str(tmp_path / "y")) == 1


@pytest.mark.feature(26)
def test_test_models_only_when_asked_for() -> None:
    with_tests = adapter_registry(Environment(), test_models=True).targets
    assert {name for name in with_tests if name not in FAMILIES} == {
        "TTDummyNoOpModel",
        "TTDummyT3000MultiProcessModel",
        "TTDummyDualGlxModel",
    }

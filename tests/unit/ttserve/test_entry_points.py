"""Our plugins beside another package's of the same names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from vllm.model_executor.models import ModelRegistry
from vllm.plugins import load_plugins_by_group

from device_service.plugin import register_models
from ttserve.entry_points import MODEL_REGISTRY, PLATFORM, Plugin
from ttserve.environment import prepare_device_service, prepare_frontend
from ttserve.errors import StartupError
from ttserve.plugin import platform_plugin
from ttserve.text_models import TextModel

FIRST, LAST = 0, 1_000_000


@pytest.fixture
def rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Install another package with plugins of our names, before or after ours."""
    metadata = tmp_path / "rival-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\ntt = rival_plugin:platform\n"
        "[vllm.general_plugins]\ntt_model_registry = rival_plugin:register\n"
    )
    (tmp_path / "rival_plugin.py").write_text(
        "calls = []\n"
        "def platform(): return 'rival.Platform'\n"
        "def register(): calls.append('register')\n"
    )
    monkeypatch.delitem(sys.modules, "rival_plugin", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def install(position: int) -> None:
        sys.path.insert(position, str(tmp_path))

    return install


@pytest.mark.feature(2)
@pytest.mark.parametrize("plugin", [PLATFORM, MODEL_REGISTRY])
def test_what_is_installed_is_what_the_code_says(plugin: Plugin) -> None:
    """The metadata comes from pyproject.toml, at the last `make install`."""
    (found,) = entry_points(group=plugin.group, name=plugin.name)
    assert found.value == plugin.target


@pytest.mark.feature(1)
@pytest.mark.parametrize("position", [FIRST, LAST])
def test_outside_of_our_commands_the_other_package_answers(
    rival: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """Whichever of the two vLLM keeps."""
    rival(position)
    monkeypatch.delenv("TTSERVE_ROLE")
    monkeypatch.delenv("VLLM_PLUGINS")
    assert load_plugins_by_group(PLATFORM.group)["tt"]() == "rival.Platform"
    load_plugins_by_group(MODEL_REGISTRY.group)["tt_model_registry"]()
    assert sys.modules["rival_plugin"].calls == ["register"]


@pytest.mark.feature(1)
def test_outside_of_our_commands_and_alone_nobody_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TTSERVE_ROLE")
    known = dict(ModelRegistry.models)
    assert platform_plugin() is None
    register_models()
    assert ModelRegistry.models == known


@pytest.mark.feature(2)
@pytest.mark.parametrize(
    "prepare", [prepare_frontend, lambda it: prepare_device_service(None, it)]
)
def test_under_our_commands_a_plugin_that_displaces_ours_is_refused(
    rival: Callable[[int], None], prepare: Callable[[dict[str, str]], None]
) -> None:
    rival(LAST)
    with pytest.raises(StartupError, match="uninstall rival here") as caught:
        prepare({})
    assert "\n" not in str(caught.value)


@pytest.mark.feature(2)
def test_under_our_commands_one_that_ours_displaces_is_none(
    rival: Callable[[int], None],
) -> None:
    rival(FIRST)
    prepare_device_service(None, {})
    assert (
        load_plugins_by_group(PLATFORM.group)["tt"]() == "ttserve.platform.TTPlatform"
    )


@pytest.mark.feature(2)
def test_a_missing_plugin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(StartupError, match="run `make install`"):
        prepare_device_service(None, {})


@pytest.mark.feature(12)
def test_vllm_learns_what_only_adapters_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And keeps its own class of what it knows; twice does no more than once."""
    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    llama = ModelRegistry.models["LlamaForCausalLM"]
    monkeypatch.setenv(
        "TT_MODEL_CLASS_OVERRIDES", "TTUnheardForCausalLM=m:X,LlamaForCausalLM=m:Y"
    )
    register_models()
    once = dict(ModelRegistry.models)
    register_models()
    assert ModelRegistry.models == once
    assert ModelRegistry.models["LlamaForCausalLM"] is llama
    info = ModelRegistry.models["UnheardForCausalLM"].inspect_model_cls()
    assert info.is_text_generation_model
    assert not info.supports_multimodal
    assert ModelRegistry.models["UnheardForCausalLM"].load_model_cls() is TextModel
    assert not [name for name in once if re.match("TT[A-Z]", name)]


def test_plugins_are_light() -> None:
    """vLLM imports them in every process, an ordinary one's too."""
    program = (
        "import sys, ttserve.plugin, device_service.plugin\n"
        "print([n for n in ('grpc', 'torch', 'vllm') if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert result.stdout.strip() == "[]"

"""What each command finds in its environment before the first heavy import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ttserve.environment import (
    Role,
    cache_dir,
    conversion_environment,
    current_role,
    prepare_device_service,
    prepare_frontend,
)
from ttserve.errors import StartupError


@pytest.mark.edge(54)
@pytest.mark.feature(19)
def test_the_device_service_says_what_it_is() -> None:
    environ: dict[str, str] = {}
    prepare_device_service(None, environ)
    assert current_role(environ) is Role.DEVICE
    assert environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_the_role_is_that_of_the_last_command() -> None:
    """tt-serve started from a device service's shell must start frontends."""
    environ: dict[str, str] = {}
    prepare_device_service(None, environ)
    prepare_frontend(environ)
    assert current_role(environ) is Role.FRONTEND


@pytest.mark.parametrize("value", ["", "device ", "DEVICE", "other"])
def test_no_other_value_is_a_role(value: str) -> None:
    assert current_role({"TTSERVE_ROLE": value}) is None


def test_a_local_model_keeps_the_hub_out(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    prepare_device_service(tmp_path, environ)
    assert environ["HF_HUB_OFFLINE"] == "1"


def test_a_hub_id_leaves_the_hub_alone(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    prepare_device_service("somebody/some-model", environ)
    assert "HF_HUB_OFFLINE" not in environ


def test_a_default_yields_to_the_operator() -> None:
    environ = {"HF_HUB_OFFLINE": "0", "OMP_WAIT_POLICY": "ACTIVE"}
    prepare_frontend(environ)
    assert environ["HF_HUB_OFFLINE"] == "0"
    assert environ["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.edge(54)
@pytest.mark.feature(19)
def test_what_cannot_be_otherwise_is_refused() -> None:
    with pytest.raises(StartupError, match="VLLM_USE_V2_MODEL_RUNNER=1 is set") as info:
        prepare_frontend({"VLLM_USE_V2_MODEL_RUNNER": "1"})
    assert "\n" not in str(info.value)


@pytest.mark.feature(2)
@pytest.mark.parametrize(
    ("chosen", "loaded"),
    [
        (None, "tt,tt_model_registry"),
        ("", "tt,tt_model_registry"),
        ("mine", "mine,tt,tt_model_registry"),
        ("tt", "tt,tt_model_registry"),
        ("tt_model_registry,mine,tt", "mine,tt,tt_model_registry"),
    ],
)
def test_our_plugins_are_always_among_the_loaded(
    chosen: str | None, loaded: str
) -> None:
    environ = {} if chosen is None else {"VLLM_PLUGINS": chosen}
    prepare_device_service(None, environ)
    assert environ["VLLM_PLUGINS"] == loaded


@pytest.mark.feature(2)
def test_a_frontend_loads_the_platform_only() -> None:
    """Its models come over the wire, and it runs without the device service's code."""
    environ = {"VLLM_PLUGINS": "tt,tt_model_registry,mine"}
    prepare_frontend(environ)
    assert environ["VLLM_PLUGINS"] == "mine,tt"


def test_a_conversion_belongs_to_no_service() -> None:
    """It inherits the rest, and what it sets stays its own."""
    environ = {"HOME": "/somewhere"}
    prepared = conversion_environment(environ)
    assert current_role(prepared) is None
    assert prepared["HOME"] == "/somewhere"
    assert prepared["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environ == {"HOME": "/somewhere"}


@pytest.mark.parametrize("base", ["", "relative/cache"])
def test_the_cache_is_below_home(base: str) -> None:
    assert cache_dir({"XDG_CACHE_HOME": base}) == Path.home() / ".cache" / "ttserve"


def test_the_cache_can_be_elsewhere() -> None:
    assert cache_dir({"XDG_CACHE_HOME": "/big/disk"}) == Path("/big/disk/ttserve")


def test_preparing_imports_nothing_heavy() -> None:
    """Or it would come too late: libraries read these settings at import."""
    program = (
        "import sys, ttserve.environment\n"
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

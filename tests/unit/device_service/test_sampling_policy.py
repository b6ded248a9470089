"""From a command line to what decides about the sampling site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_service.config import parse_args
from device_service.describe import describe
from device_service.device import Device
from device_service.effective import effective_configuration
from device_service.mesh.factory import make_mesh
from device_service.resolve import Resolved, resolve
from device_service.sampling.interface import HostSampling
from device_service.sampling.site import SitePolicy
from device_service.sampling_policy import host_sampling, top_k_advice
from tests.unit.device_service.test_resolve import changed_model, resolved
from ttserve.errors import StartupError

TT = "--additional-config.tt."


@pytest.fixture
def devices() -> Iterator[list[Device]]:
    opened: list[Device] = []
    yield opened
    for device in opened:
        device.close()


def launch(
    devices: list[Device], *arguments: str, **environ: str
) -> tuple[HostSampling, Resolved]:
    """As the service starts, up to where it would let requests in."""
    config = parse_args(
        ["--mesh", "sim", "--max-model-len", "256", "--max-num-seqs", "4", *arguments],
        environ,
    )
    mesh = make_mesh("sim", {"mesh_device": config.environment.mesh_device})
    it = resolve(config, mesh, print)
    device = Device(mesh)
    devices.append(device)
    device.open()
    driver = device.allocate(device.load(it), it)
    if config.tt.enable_model_warmup:
        device.warm_up()
    return host_sampling(it, mesh, driver), it


def policy(devices: list[Device], *arguments: str, **environ: str) -> SitePolicy:
    return launch(devices, *arguments, **environ)[0].site


def test_the_host_samples_unless_asked(devices: list[Device]) -> None:
    site = policy(devices)
    assert (site.mode, site.device_grammar, site.seeded_on_host) == (None, False, False)


@pytest.mark.feature(117, 119, 125, 134)
def test_what_is_asked_for(devices: list[Device]) -> None:
    site = policy(
        devices,
        f"{TT}sample_on_device_mode",
        "decode_only",
        f"{TT}seeded_sampling_policy",
        "host",
        "--logprobs-mode",
        "processed_logprobs",
        "--no-async-scheduling",
        MESH_DEVICE="T3K",
    )
    assert site == SitePolicy(
        vocab_size=site.vocab_size,
        mode="decode_only",
        max_device_top_k=32,
        device_penalties=True,
        device_grammar=True,
        top_logprobs=False,
        raw_logprobs=False,
        devices=8,
        custom_processors=False,
        seeded_on_host=True,
    )


@pytest.mark.feature(125)
def test_devices_are_those_of_a_lane(devices: list[Device]) -> None:
    site = policy(
        devices,
        "--data-parallel-size=4",
        MESH_DEVICE="TG",
        TT_LLAMA_TEXT_VER="llama3_70b_galaxy",
    )
    assert site.devices == 8


@pytest.mark.feature(134)
@pytest.mark.parametrize(
    ("trace_mode", "warm", "scheduling", "enabled"),
    [
        ("all", "true", "--no-async-scheduling", True),
        ("all", "false", "--no-async-scheduling", False),
        ("none", "false", "--no-async-scheduling", True),
        ("all", "true", "--async-scheduling", False),
    ],
)
def test_masks_on_the_device_need_single_steps_and_a_warm_up_of_traces(
    devices: list[Device], trace_mode: str, warm: str, scheduling: str, enabled: bool
) -> None:
    site = policy(
        devices,
        f"{TT}sample_on_device_mode",
        "all",
        f"{TT}trace_mode",
        trace_mode,
        f"{TT}enable_model_warmup",
        warm,
        scheduling,
    )
    assert site.device_grammar is enabled


@pytest.mark.feature(125)
def test_top_logprobs_by_model_type(tmp_path: Path, devices: list[Device]) -> None:
    plain = policy(devices, f"{TT}sample_on_device_mode", "all")
    assert plain.top_logprobs is False
    model = changed_model(
        tmp_path / "gpt",
        model_type="gpt_oss",
        architectures=["GptOssForCausalLM"],
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    site = policy(devices, "--model", model, f"{TT}sample_on_device_mode", "all")
    assert site.top_logprobs is True


@pytest.mark.feature(21)
@pytest.mark.parametrize("name", ["sample_on_device_mode", "seeded_sampling_policy"])
def test_values_that_are_none(name: str) -> None:
    with pytest.raises(StartupError, match=rf"{name} must be .* not 'device'"):
        resolved(f"{TT}{name}", "device")


def test_the_effective_configuration_says_where() -> None:
    arguments = [f"{TT}sample_on_device_mode", "decode_only"]
    it, mesh = resolved(*arguments, f"{TT}seeded_sampling_policy", "host")
    text = effective_configuration(it, describe(it, mesh, ""))
    assert "on the device in decode steps, where one allows it; seeded on" in text


@pytest.mark.edge(38)
@pytest.mark.parametrize(
    ("defaults", "advised"),
    [
        ({"top_k": 32}, False),
        ({"top_k": 33}, True),
        ({}, True),
        ({"temperature": 0.0}, False),
    ],
)
def test_advice_where_every_plain_request_would_go_to_the_host(
    devices: list[Device], defaults: dict[str, float], advised: bool
) -> None:
    sampling, it = launch(
        devices,
        f"{TT}sample_on_device_mode",
        "all",
        "--override-generation-config",
        json.dumps({"temperature": 0.7} | defaults),
    )
    advice = top_k_advice(sampling.site, it)
    assert (advice is not None) is advised
    if advice is not None:
        assert "--override-generation-config '{\"top_k\": 32}'" in advice

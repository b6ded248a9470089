"""The command lines that the launcher makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttserve.launcher.commands import (
    device_specs,
    frontend_specs,
    plan_spec,
    speakers,
)
from ttserve.launcher.config import parse
from ttserve.service_plan import PlannedService

GROUPS = (
    PlannedService(("--threads", "1"), {"TT_VISIBLE_DEVICES": "4,0"}),
    PlannedService(("--threads", "1"), {"TT_VISIBLE_DEVICES": "2,6"}),
)


def value(argv: tuple[str, ...], flag: str) -> str:
    """What comes behind the last of these flags: that is the one that counts."""
    return argv[len(argv) - argv[::-1].index(flag)]


def test_one_device_service() -> None:
    config = parse(["--mesh", "sim"])
    (device,) = device_specs(config, (PlannedService(),))
    (frontend,) = frontend_specs(config, 7, 1)
    assert device.name == "device"
    assert value(device.argv, "--listen") == "127.0.0.1:50051"
    assert value(frontend.argv, "--device-service") == "127.0.0.1:50051"
    assert "--data-parallel-size" not in device.argv


@pytest.mark.edge(49)
@pytest.mark.feature(95)
def test_each_device_service_is_bound_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TT_METAL_HOME", "/tt-metal")
    config = parse(
        ["m", "-dp", "2", "--grpc-port", "6000", "--frontends", "2", "--threads", "9"]
    )
    devices = device_specs(config, GROUPS)
    assert [it.name for it in devices] == ["device0", "device1"]
    assert [value(it.argv, "--listen") for it in devices] == [
        "127.0.0.1:6000",
        "127.0.0.1:6001",
    ]
    assert [value(it.argv, "--threads") for it in devices] == ["1", "1"]
    environments = [dict(it.environment or {}) for it in devices]
    assert [it["TT_VISIBLE_DEVICES"] for it in environments] == ["4,0", "2,6"]
    assert [it["TT_METAL_HOME"] for it in environments] == ["/tt-metal"] * 2


def test_every_frontend_uses_all_device_services() -> None:
    config = parse(["-dp", "2", "--frontends", "2"])
    frontends = frontend_specs(config, 7, 2)
    assert [value(it.argv, "--device-service") for it in frontends] == [
        "127.0.0.1:50051,127.0.0.1:50052"
    ] * 2


def test_the_plan_is_asked_for_with_the_flags_of_the_device_service() -> None:
    spec = plan_spec(parse(["m", "-dp", "4", "--mesh", "cpu"]), Path("/tmp/p"))
    assert value(spec.argv, "--model") == "m"
    assert value(spec.argv, "--mesh") == "cpu"
    assert value(spec.argv, "--data-parallel-size") == "4"
    assert value(spec.argv, "--plan") == "/tmp/p"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("", ["device", "frontend0"]),
        ("-dp 2", ["plan", "device", "device0", "device1", "frontend0"]),
    ],
)
def test_all_that_may_speak_have_a_name(line: str, names: list[str]) -> None:
    assert speakers(parse(line.split())) == names


def test_each_device_service_gets_a_metrics_port_when_asked() -> None:
    two = (PlannedService(), PlannedService())
    given = [
        spec.argv[spec.argv.index("--metrics-port") + 1]
        for spec in device_specs(parse(["--device-metrics-port", "9300"]), two)
    ]
    assert given == ["9300", "9301"]
    for spec in device_specs(parse([]), two):
        assert "--metrics-port" not in spec.argv

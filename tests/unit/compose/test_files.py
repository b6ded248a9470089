"""What can be said of the composition without building it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from frontend.command_line import SHUTDOWN_SECONDS

COMPOSE = Path(__file__).parents[3] / "compose"
DOCKERFILES = sorted(COMPOSE.glob("*.Dockerfile"))
OWN_PART = "# From here on"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_every_image_starts_from_debian(dockerfile: Path) -> None:
    stages = {"debian:bookworm-slim"}
    for base, _, stage in re.findall(
        r"^FROM (\S+)( AS (\S+))?", dockerfile.read_text(), re.M
    ):
        assert base in stages
        stages.add(stage)


def test_the_two_services_share_their_layers() -> None:
    shared = []
    for name in ("device-service", "frontend"):
        text = (COMPOSE / f"{name}.Dockerfile").read_text()
        instructions = text[text.index("FROM ") : text.rindex(OWN_PART)]
        shared.append(instructions)
    assert shared[0] == shared[1]


def test_every_setting_is_listed() -> None:
    used: set[str] = set()
    for path in COMPOSE.glob("*.yaml"):
        text = path.read_text()
        used |= set(re.findall(r"(?<!\$)\$\{(\w+)", text))
        used |= set(re.findall(r"^ +([A-Z0-9_]+):$", text, re.M))  # passed on
    listed = re.findall(r"^(?:# )?(\w+)=", (COMPOSE / "env.example").read_text(), re.M)
    assert used == set(listed)


def test_only_the_proxy_leaves_the_composition() -> None:
    services = yaml.safe_load((COMPOSE / "docker-compose.yaml").read_text())["services"]
    publishing = {
        name
        for name, service in services.items()
        if "ports" in service and "profiles" not in service
    }
    assert publishing == {"proxy"}


def seconds(text: str) -> float:
    """`40s`, `2m` and plain numbers."""
    number, unit = re.fullmatch(r"(\d+)(s|m)?", text).groups()  # type: ignore[union-attr]
    return float(number) * (60 if unit == "m" else 1)


def test_nobody_is_killed_before_its_drain_is_over() -> None:
    services = yaml.safe_load((COMPOSE / "docker-compose.yaml").read_text())["services"]
    hardware = yaml.safe_load((COMPOSE / "hardware.yaml").read_text())["services"]
    (proxy,) = re.findall(
        r"hard-stop-after (\S+)", (COMPOSE / "haproxy.cfg").read_text()
    )
    longest = SHUTDOWN_SECONDS + 2
    assert longest < seconds(proxy) < seconds(services["proxy"]["stop_grace_period"])
    for service in (
        services["frontend"],
        services["device-service"],
        *hardware.values(),
    ):
        assert seconds(service["stop_grace_period"]) > longest


def test_a_frontend_takes_requests_until_the_proxy_has_noticed() -> None:
    services = yaml.safe_load((COMPOSE / "docker-compose.yaml").read_text())["services"]
    (command,) = services["frontend"]["command"]
    (delay,) = re.findall(r"--drain-delay (\d+)", command)
    proxy = (COMPOSE / "haproxy.cfg").read_text()
    ((inter, fall),) = re.findall(r"check inter (\S+) fall (\d+)", proxy)
    (timeout,) = re.findall(r"timeout check (\S+)", proxy)
    assert float(delay) > seconds(inter) * int(fall) + seconds(timeout)


@pytest.mark.parametrize(
    "path", sorted(COMPOSE.glob("*.json")), ids=lambda path: path.name
)
def test_the_proxy_answers_in_the_envelope(path: Path) -> None:
    error = json.loads(path.read_text())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    status = f"http-error status {error['code']} .*{path.name}"
    assert re.search(status, (COMPOSE / "haproxy.cfg").read_text())


def services() -> dict[str, dict[str, Any]]:
    text = (COMPOSE / "docker-compose.yaml").read_text()
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


@pytest.mark.parametrize("name", sorted(services()))
def test_a_container_can_do_no_more_than_it_must(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    for more in ("privileged", "cap_add", "user", "network_mode", "pid", "devices"):
        assert more not in service


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_no_image_runs_as_root(dockerfile: Path) -> None:
    last_stage = dockerfile.read_text().rpartition("\nFROM ")[2]
    users = re.findall(r"^USER (\S+)", last_stage, re.M)
    assert users
    assert users[-1] not in ("root", "0")


def test_hardware_adds_devices_and_no_capabilities() -> None:
    text = (COMPOSE / "hardware.yaml").read_text()
    (service,) = yaml.safe_load(text)["services"].values()
    assert service["devices"] == ["/dev/tenstorrent:/dev/tenstorrent"]
    for more in ("privileged", "cap_add", "cap_drop", "security_opt", "user"):
        assert more not in service

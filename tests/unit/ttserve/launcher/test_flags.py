"""Every flag reaches the command it belongs to, with its values."""

from __future__ import annotations

import pytest

from ttserve.errors import StartupError
from ttserve.launcher.flags import Owner, sort_flags


@pytest.mark.parametrize(
    ("line", "device", "frontend"),
    [
        ("--mesh sim", "--mesh sim", ""),
        ("--enforce-eager --api-key k", "--enforce-eager", "--api-key k"),
        ("--api-key k l --mesh=cpu", "--mesh=cpu", "--api-key k l"),
        ("--max_model_len 4096", "--max_model_len 4096", ""),
        ("--seed -1", "--seed -1", ""),
        ("--max-model-len=-1", "--max-model-len=-1", ""),
        ("--lora-modules a=b --mesh sim", "--mesh sim", "--lora-modules a=b"),
        ("--enable-log-requests", *["--enable-log-requests"] * 2),
        ("--log-format json", *["--log-format json"] * 2),
        ("--otlp-traces-endpoint=http://c:4317",)
        + ("--otlp-traces-endpoint=http://c:4317",) * 2,
        ("--additional-config.tt.mesh sim", "--additional-config.tt.mesh sim", ""),
        ("--no-enable-prefix-caching", "--no-enable-prefix-caching", ""),
        ("-tp 2", "-tp 2", ""),
        ("-O3", "-O3", ""),
        ("-dp 2 --data-parallel-size=2 --mesh sim", "--mesh sim", ""),
    ],
)
def test_owner(line: str, device: str, frontend: str) -> None:
    flags = sort_flags(line.split())
    assert flags.by_owner[Owner.DEVICE] == device.split()
    assert flags.by_owner[Owner.FRONTEND] == frontend.split()
    assert not flags.positional


def test_a_flag_without_values_leaves_the_model_alone() -> None:
    flags = sort_flags(["--enforce-eager", "my-model", "--frontends", "2"])
    assert flags.positional == ["my-model"]
    assert flags.by_owner[Owner.LAUNCHER] == ["--frontends", "2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--max-modle-len 1",
            "unknown flag --max-modle-len (did you mean --max-model-len?)",
        ),
        ("--qqqqqqqq", "unknown flag --qqqqqqqq"),
        ("-- model", "unknown flag --"),
        ("--mesh", "--mesh needs a value"),
        ("--mesh --enforce-eager", "--mesh needs a value"),
        ("--api-key --mesh sim", "--api-key needs a value"),
        ("--check", "tt-serve has no --check: run tt-device-service --check"),
        ("--listen 0.0.0.0:1", "tt-serve sets --listen itself: use --grpc-port"),
        ("--device-service=h:1", "tt-serve sets --device-service itself: it starts"),
        ("--plan f", "tt-serve sets --plan itself: use --data-parallel-size"),
    ],
)
def test_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(StartupError) as caught:
        sort_flags(line.split())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)

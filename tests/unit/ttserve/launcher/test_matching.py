"""Frontends of tt-serve show what its device service asks for."""

from __future__ import annotations

import pytest

from ttserve.launcher.commands import frontend_specs
from ttserve.launcher.config import parse


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--mesh sim", ""),
        ("--grpc-token-file t", "--device-token-file t"),
        ("--grpc_token_file=t", "--device-token-file t"),
        ("--inspector-token-file i", "--device-inspector-token-file i"),
        ("--grpc-tls-cert c --grpc-tls-key k", "--device-tls-ca c"),
        (
            "--grpc-tls-cert c --grpc-tls-key k --device-tls-ca a",
            "--device-tls-ca a",
        ),
        (
            "--grpc-token-file t --device-token-file=u --step-control-token-file s",
            "--device-token-file=u",
        ),
    ],
)
def test_one_flag_is_enough(line: str, expected: str) -> None:
    (spec,) = frontend_specs(parse(line.split()), 7, devices=1)
    words = [*spec.argv]
    first = next((i for i, w in enumerate(words) if "--device-t" in w), len(words))
    first = next((i for i, w in enumerate(words) if "--device-i" in w), first)
    assert words[first:] == expected.split()

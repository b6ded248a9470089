"""The contracts in pyproject.toml hold, and they are the ones we mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = ("services", "shared", "ttnn", "wire", "adapters", "light")


@pytest.mark.feature(156)
def test_import_contracts() -> None:
    """Each by its name, so that a contract cannot disappear unnoticed."""
    result = subprocess.run(
        [
            Path(sys.executable).with_name("lint-imports"),
            "--no-cache",
            *(f"--contract={name}" for name in CONTRACTS),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout


def test_the_device_service_package_is_empty() -> None:
    """Its mesh must be importable where there is neither vLLM nor torch."""
    assert (ROOT / "device_service" / "__init__.py").read_text() == ""

"""The suite of tests/tt, which any server can be asked with, against our own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reference import default_model
from tests.support.stack import Stack, running_stack

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "tests" / "tt"
BUDGET = 128

pytestmark = pytest.mark.timeout(900)


def run_suite(
    *options: str, directory: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run the suite as a process, as its user would."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            str(SUITE),
            "-p",
            "no:cacheprovider",
            *options,
        ],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    default_model()
    with running_stack(
        tmp_path_factory.mktemp("suite"),
        frontends=1,
        mesh="cpu",
        device_options=[
            *("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "32"),
            *("--max-num-batched-tokens", str(BUDGET)),
        ],
        frontend_options=[],
    ) as made:
        yield made


@pytest.mark.model
@pytest.mark.feature(157)
@pytest.mark.parametrize(
    ("chosen", "least"),
    [
        ("recall or one_alone or own_stop or no_bit or reward or bad_words", 7),
        pytest.param("test", 40, marks=pytest.mark.slow),
    ],
    ids=["one-of-each-file", "all"],
)
def test_the_default_model_passes(
    stack: Stack, tmp_path: Path, chosen: str, least: int
) -> None:
    """From elsewhere, and with nothing of this repository's settings."""
    done = run_suite(
        *("--tt-server-url", stack.urls[0], "--tt-chunked-prefill-budget", str(BUDGET)),
        # Its tests share batches then, which saves a third of the time.
        *("-n", "3", "-k", chosen),
        directory=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= least
    assert "skipped" not in done.stdout


@pytest.mark.feature(157)
def test_it_asks_for_the_server() -> None:
    done = run_suite()
    assert done.returncode == 4
    assert "--tt-server-url is not given; it says where" in done.stderr


@pytest.mark.feature(157)
@pytest.mark.parametrize(
    "option",
    [
        "--tt-server-url",
        "--tt-model-name",
        "--tt-reasoning-token-budget",
        "--tt-chunked-prefill-budget",
        "--tt-recall-reasoning-effort",
        "--tt-recall-reasoning-token-budget",
    ],
)
def test_help_explains_the_option(option: str, suite_help: str) -> None:
    assert option in suite_help


@pytest.fixture(scope="module")
def suite_help() -> str:
    done = run_suite("--help")
    assert done.returncode == 0, done.stderr
    return done.stdout

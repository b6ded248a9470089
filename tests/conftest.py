"""The environment of a device service, for this process and those it starts.

vLLM reads it at import, so it is set before any test module is loaded.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ttserve.environment import prepare_device_service

prepare_device_service(model=None)

# A suite for any server, with settings of its own; tests/e2e runs it.
collect_ignore = ["tt"]

HERE = Path(__file__).parent
PROCESSES = "e2e"
"""Tests that start services: they share ports' neighbourhoods, memory and the cores,
so they run one after the other, on one worker, whatever else runs beside them."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay together when several workers share them: files, whose
    fixtures are costly, and all that start services.
    """
    for item in items:
        file = item.path.relative_to(HERE)
        group = PROCESSES if file.parts[0] == PROCESSES else str(file)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def _variables_are_read_anew() -> Iterator[None]:
    """A frontend's engine makes vLLM remember its variables for good; a test's
    must not decide for the tests after it.
    """
    yield
    if "vllm.envs" in sys.modules:
        sys.modules["vllm.envs"].disable_envs_cache()

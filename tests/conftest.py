"""The environment of a device service, for this process and those it starts.

vLLM reads it at import, so it is set before any test module is loaded.
"""

import os
import sys
from collections.abc import Iterator

import pytest

from ttserve.environment import prepare_device_service

prepare_device_service(model=None)

# The tests' own products are small, and other workers want the other cores: two
# threads took a third more time. What the tests start chooses for itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Services start as forks: see tests/support/prepared.py.
os.environ.setdefault("TTSERVE_TESTS_FORK", "1")

# A suite for any server, with settings of its own; tests/e2e runs it.
collect_ignore = ["tt"]


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """Commands that run in this process set variables; the next test has its own."""
    before = dict(os.environ)
    yield
    for name in (before.keys() | os.environ.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(autouse=True)
def _variables_are_read_anew() -> Iterator[None]:
    """A frontend's engine makes vLLM remember its variables for good; a test's
    must not decide for the tests after it.
    """
    yield
    if "vllm.envs" in sys.modules:
        sys.modules["vllm.envs"].disable_envs_cache()

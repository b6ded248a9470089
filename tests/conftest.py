"""The environment of a device service, for this process and those it starts.

vLLM reads it at import, so it is set before any test module is loaded.
"""

import sys
from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from ttserve.environment import prepare_device_service

prepare_device_service(model=None)

# A suite for any server, with settings of its own; tests/e2e runs it.
collect_ignore = ["tt"]

SERVICES = "tests/e2e"
"""Tests that start services run one after the other, on one worker, whatever else
runs beside them: they want the cores, and some of them measure deadlines.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> LoadScopeScheduling:
    """Share the tests file by file: fixtures are costly. Services are one file."""
    return _FileByFile(config, log)


class _FileByFile(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return SERVICES if nodeid.startswith(SERVICES) else nodeid.partition("::")[0]


@pytest.fixture(autouse=True)
def _variables_are_read_anew() -> Iterator[None]:
    """A frontend's engine makes vLLM remember its variables for good; a test's
    must not decide for the tests after it.
    """
    yield
    if "vllm.envs" in sys.modules:
        sys.modules["vllm.envs"].disable_envs_cache()

"""Runs the checks on an adapter and says how each went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from device_service.mesh.driver import LoadSpec, TraceMode, load_model
from device_service.mesh.interface import Mesh
from device_service.mesh.warm_up import DeviceSampling
from device_service.models.capabilities import Capabilities
from device_service.models.probe.breach import ContractBreach
from device_service.models.probe.checks import CHECKS, Wrong
from device_service.models.probe.exercise import Exercise
from device_service.models.probe.probed import probed


@dataclass(frozen=True, slots=True)
class Setup:
    """What an adapter is tried with. `tolerance`: of probabilities."""

    hf_config: Any
    directory: Path
    dtype: torch.dtype
    rows: int
    lanes: int
    block_size: int
    max_model_len: int
    trace_mode: TraceMode
    tolerance: float


class Report:
    """Tells each outcome as it comes, and counts them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.passed = self.broken = self.left_out = 0

    @contextmanager
    def check(self, name: str, rules: str) -> Iterator[None]:
        """What is raised inside is what is wrong."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever an adapter raises
            self.broken += 1
            self._tell(f"  BROKEN  {name}: {_said(error)}")
        else:
            self.passed += 1
            self._tell(f"  ok      {name} ({rules})")

    def leave_out(self, name: str, capability: str) -> None:
        """A check that the adapter does not claim to pass."""
        self.left_out += 1
        self._tell(f"  -       {name}: {capability} is not declared")

    def summary(self) -> str:
        """One line of counts."""
        return f"{self.passed} passed, {self.broken} broken, {self.left_out} left out"


def run_checks(adapter: type[Any], mesh: Mesh, setup: Setup, report: Report) -> None:
    """Take the adapter through its whole life on an open mesh."""
    watched = probed(adapter)
    capabilities = Capabilities.of(adapter)
    exercise = None
    with report.check("loading, KV cache and warm-up", "1.1 to 1.6"):
        exercise = _serve(watched, mesh, setup, capabilities)
    if exercise is None:
        return
    for check in CHECKS:
        missing = [name for name in check.needs if not getattr(capabilities, name)]
        if missing:
            report.leave_out(check.name, missing[0])
            continue
        with report.check(check.name, check.rules):
            check.run(exercise, setup.tolerance)
        exercise.leave_all()
    with report.check("the end", "1.12"):
        exercise.driver.close()


def _serve(
    adapter: type[Any], mesh: Mesh, setup: Setup, capabilities: Capabilities
) -> Exercise:
    on_device = capabilities.supports_sample_on_device
    loaded = load_model(
        adapter,
        mesh,
        LoadSpec(
            hf_config=setup.hf_config,
            model_path=str(setup.directory),
            dtype=setup.dtype,
            max_model_len=setup.max_model_len,
            block_size=setup.block_size,
            rows_per_lane=setup.rows,
            lanes=setup.lanes,
            trace_mode=setup.trace_mode,
            device_sampling=DeviceSampling(
                prefill=on_device,
                decode=on_device,
                grammar=capabilities.supports_device_grammar,
            ),
        ),
    )
    width = -(-setup.max_model_len // setup.block_size)
    # One sequence more than there are rows: a cached prefix has no row.
    num_blocks = (setup.rows + 1) * width + 1
    driver = loaded.allocate(num_blocks, setup.max_model_len)
    driver.warm_up(lambda _: None)
    return Exercise(
        driver,
        rows=setup.rows * setup.lanes,
        rows_per_lane=setup.rows,
        block_size=setup.block_size,
        num_blocks=num_blocks,
        vocabulary=setup.hf_config.get_text_config().vocab_size,
        capabilities=capabilities,
    )


def _said(error: Exception) -> str:
    """One line; what is not ours says its kind and where it was raised."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, ContractBreach | Wrong):
        return line
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = "" if frame is None else f" in {frame.tb_frame.f_code.co_qualname}"
    return f"{type(error).__name__}{place}: {line}"

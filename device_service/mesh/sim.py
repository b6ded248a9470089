"""The `sim` mesh: no model, a latency profile and faults on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from device_service.mesh.host_mesh import HostMesh
from device_service.mesh.host_queue import Task
from device_service.mesh.interface import MeshPoisoned
from ttserve.errors import StartupError

T = TypeVar("T")

TIMER_LATENESS_SECONDS = 0.0003
"""How much too late a sleep may end: some 0.2 ms on a virtual machine."""


class SimStepFailed(RuntimeError):
    """A step that the profile told to fail."""


@dataclass(frozen=True, slots=True)
class SimProfile:
    """How long steps take and which go wrong: `tt.sim` of --additional-config.

    Steps are counted from 1, in order of submission, warm-up left out. A
    prefill step takes prefill_ms + prefill_us_per_token * its tokens.
    `hang_step` blocks until `SimMesh.release`. With `mean_output_tokens` the
    model ends sequences by itself, after so many tokens on average; without,
    it never emits an end-of-sequence token and only limits end a request.
    """

    decode_ms: float = 0.0
    prefill_ms: float = 0.0
    prefill_us_per_token: float = 0.0
    fail_steps: frozenset[int] = frozenset()
    poison_step: int | None = None
    hang_step: int | None = None
    mean_output_tokens: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> SimProfile:
        """Read the operator's options; raises StartupError naming the bad one."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(options) - known):
            raise StartupError(
                f"tt.sim: unknown option {unknown[0]!r}; "
                f"known: {', '.join(sorted(known))}"
            )
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name == "fail_steps":
                values[name] = _step_numbers(value)
            elif name in ("decode_ms", "prefill_ms", "prefill_us_per_token"):
                values[name] = _duration(name, value)
            else:
                values[name] = _positive(name, value)
        return cls(**values)

    def decode_seconds(self) -> float:
        """How long a decode step takes."""
        return self.decode_ms / 1e3

    def prefill_seconds(self, tokens: int) -> float:
        """How long a prefill step of so many tokens takes."""
        return self.prefill_ms / 1e3 + tokens * self.prefill_us_per_token / 1e6


def _duration(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise StartupError(f"tt.sim.{name} must be a number >= 0, not {value!r}")
    return float(value)


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise StartupError(f"tt.sim.{name} must be a whole number >= 1, not {value!r}")
    return value


def _step_numbers(value: object) -> frozenset[int]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise StartupError(
            f"tt.sim.fail_steps must be a list of numbers, not {value!r}"
        )
    return frozenset(_positive("fail_steps", number) for number in value)


class SimMesh(HostMesh):
    """Runs steps that take as long as the profile says."""

    def __init__(
        self, grid: tuple[int, int] = (1, 1), profile: SimProfile | None = None
    ) -> None:
        super().__init__("sim", grid)
        self.profile = profile or SimProfile()
        self._steps = 0
        self._free_at = 0.0
        self._released = threading.Event()

    def submit_step(self, work: Callable[[], T], seconds: float) -> Task[T]:
        """Queue a step that takes `seconds`; `work` is hidden in that time.

        Engine thread. A step told to fail leaves the cache as it was.
        """
        self._steps += 1
        number = self._steps
        submitted = time.monotonic()
        return self.submit(lambda: self._step(number, work, submitted, seconds))

    def release(self) -> None:
        """Let a hanging step, and any later one told to hang, go on."""
        self._released.set()

    def close(self) -> None:
        """Close; a hanging step goes on first, or closing would wait for ever."""
        self.release()
        super().close()

    def _step(
        self, number: int, work: Callable[[], T], submitted: float, seconds: float
    ) -> T:
        profile = self.profile
        if number == profile.hang_step:
            self._released.wait()
        if number == profile.poison_step:
            raise MeshPoisoned(f"step {number} was told to poison the mesh")
        ends = max(submitted, self._free_at) + seconds
        if number in profile.fail_steps:
            self._sleep_until(ends)
            raise SimStepFailed(f"step {number} was told to fail")
        value = work()
        self._sleep_until(ends)
        return value

    def _sleep_until(self, deadline: float) -> None:
        """Sleep, and count the deadline as the step's end, not the wake-up.

        A queued step then starts when a device would have started it, so that
        late wake-ups do not add up. A device is not late as a timer is, so the
        last moments are spent looking at the clock.
        """
        self._free_at = max(deadline, time.monotonic())
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(max(0.0, left - TIMER_LATENESS_SECONDS))

"""Replays a recording: the same events at the same moments, on the simulated mesh.

The engine is the real one. Its decisions follow from what it finds in its inbox,
at which look, and from what comes out of steps; never from the time, which is
the recorded one here and only dates what is told of a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from device_service.engine import Engine
from device_service.inbox import Inbox, Witness
from device_service.mesh.factory import make_mesh
from device_service.recording import events
from device_service.recording.events import Recorded
from device_service.recording.recorder import RECORDING, Recorder, Recording, Seen
from device_service.records import StepRecord
from device_service.replay.decisions import BLOCKS, Difference, compare
from device_service.replay.outcomes import EndOfRecording, Outcomes, ReplayDriver
from device_service.replay.rebuild import Rebuilt, load, rebuild, restore, vllm_config
from device_service.replay.requests import admitted
from device_service.wording import one_line
from ttserve.errors import Reason, TTServeError


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it. `steps` are those of the replay up to the difference.

    running: the step that was not finished when the recording ended, if it was
    waited for.
    """

    recording: Recording
    steps: tuple[StepRecord, ...]
    difference: Difference | None
    running: EndOfRecording | None = None


def replay(recording: Recording) -> Replayed:
    """Run a recording again. Raises StartupError where it cannot be."""
    config = vllm_config(recording.setup)
    mesh = make_mesh("sim", {})
    mesh.open()
    with closing(mesh):
        driver = load(recording.setup, config, mesh)
        return _Replay(recording, config, driver).run()


class _Clock:
    """The recorded time."""

    def __init__(self, begins: float) -> None:
        self.now = begins

    def __call__(self) -> float:
        return self.now


class _Inbox(Inbox):
    """Holds back every recorded event until the look at which it was taken."""

    def __init__(self, witness: Witness, seen: tuple[Seen, ...], looks: int) -> None:
        super().__init__(witness)
        self._seen = deque(seen)
        self.looks = looks
        self.act: Callable[[Seen], None] = lambda seen: None

    def run(self) -> None:
        self.looks += 1
        while self._seen and self._seen[0].look <= self.looks:
            self.act(self._seen.popleft())
        super().run()


class _Rerun(Recorder):
    """Asks for a moment without steps in flight where the recorder then did."""

    def __init__(self, recording: Recording, rebuilt: Rebuilt) -> None:
        super().__init__(recording.setup, lambda: recording.picture, 1)
        self._planner = rebuilt.parts.planner
        self._asked = {
            step.number for step in recording.steps if step.overlap == RECORDING
        }

    @property
    def overdue(self) -> bool:
        return self._planner.last_number + 1 in self._asked


class _Replay:
    """One run."""

    def __init__(self, recording: Recording, config: Any, driver: Any) -> None:
        self._recording = recording
        self._outcomes = Outcomes(recording)
        self._clock = _Clock(recording.unix_seconds)
        setup, picture = recording.setup, recording.picture
        rebuilt = rebuild(
            setup,
            config,
            ReplayDriver(
                driver,
                self._outcomes,
                picture.last_number,
                resident_inputs=setup.resident_inputs,
                on_read=self._read,
            ),
            self._clock,
        )
        restore(rebuilt, setup, picture)
        self._hashes = rebuilt.hashes
        rerun = _Rerun(recording, rebuilt)
        self._inbox = _Inbox(rerun, recording.events, recording.first_look - 1)
        parts = replace(rebuilt.parts, inbox=self._inbox, recorder=rerun)
        parts.steps.add_listener(self._take)
        self._parts = parts
        self._engine = Engine(parts)
        self._inbox.act = self._act
        if picture.paused:
            parts.control.pause()
        if picture.steps_allowed is not None:
            parts.control.run(picture.steps_allowed, Future())
        self._left = deque(recording.steps)
        self._steps: list[StepRecord] = []
        self._difference: Difference | None = None
        self._suspect: Difference | None = None
        self._stopped = False

    def run(self) -> Replayed:
        """Turn by turn, to the end or to the first difference."""
        recording = self._recording
        ended, running = "", None
        while not (self._difference or self._stopped or ended):
            if self._inbox.looks >= recording.last_look:
                break
            try:
                self._engine.step()
            except EndOfRecording as end:
                running = end
                break
            except Exception as error:  # noqa: BLE001 - compared with the recorded end
                ended = f"{type(error).__name__}: {one_line(error)}"
        difference = self._difference or self._suspect or self._at_the_end(ended)
        return Replayed(recording, tuple(self._steps), difference, running)

    def _last_number(self) -> int:
        steps = self._recording.steps
        return steps[-1].number if steps else self._recording.picture.last_number

    def _at_the_end(self, ended: str) -> Difference | None:
        """Whether what was recorded is all there, and ended alike."""
        recorded = self._recording.end
        number = self._left[0].number if self._left else self._last_number() + 1
        if ended and recorded is None:
            return Difference(number, "engine", "goes on", f"ends: {ended}")
        if self._left:
            return Difference(number, "step", "applied", "never reached")
        if recorded is not None and not ended:
            return Difference(number, "engine", f"ends: {recorded.error}", "goes on")
        return None

    def _take(self, record: StepRecord) -> None:
        """Compare a step of the replay with the one that was recorded."""
        self._steps.append(record)
        if self._difference is not None or not self._left:
            return
        recorded = self._left.popleft()
        first = recorded.number == self._recording.picture.last_number + 1
        found = compare(recorded, record, first=first)
        if self._suspect is not None:
            later = found is not None and found.what != BLOCKS
            self._difference = found if later else self._suspect
        elif found is not None and found.what == BLOCKS:
            self._suspect = found
        else:
            self._difference = found

    def _read(self, number: int) -> None:
        record = self._outcomes.record(number)
        if record is not None:
            self._clock.now = record.unix_seconds

    def _act(self, seen: Seen) -> None:
        self._clock.now = seen.unix_seconds
        self._do(seen.event)

    def _do(self, event: Recorded) -> None:
        engine = self._engine
        match event:
            case events.Arrivals(requests):
                for request in requests:
                    self._hashes.learn(request)
                vocab_size = self._recording.setup.site.vocab_size
                engine.submit([admitted(it, vocab_size) for it in requests])
            case events.GrammarReady(request_id, failed):
                error = TTServeError(Reason.GRAMMAR, "it failed then, too")
                engine.grammar_ready(request_id, error if failed else None)
            case events.Aborted(request_ids, cause):
                engine.abort(request_ids, cause)
            case events.Paused():
                engine.pause()
            case events.StepsAsked(count):
                engine.run_steps(count)
            case events.Resumed():
                engine.resume()
            case events.ResetAsked(preempt_running):
                engine.reset_prefix_cache(preempt_running=preempt_running)
            case events.Stopped():
                self._stopped = True

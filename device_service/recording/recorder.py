"""The flight recorder: the newest events and steps, always on.

What it keeps is cut into stretches, each of which begins with a picture of the
engine, so that the oldest can be dropped and what is left can still be replayed.
A picture is taken between two steps when none is in flight. Where steps overlap
for so long that there is no such moment, the recorder asks for one: a single
step of many hundreds is then not submitted early.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from device_service.mesh.interface import MeshPoisoned
from device_service.recording.events import (
    Arrivals,
    Arrived,
    Event,
    Recorded,
    RecordedRequest,
)
from device_service.recording.picture import EnginePicture
from device_service.recording.setup import EngineSetup
from device_service.records import OverlapVerdict, StepRecord

RECORDING = OverlapVerdict(overlap=False, reason="recording")

MAX_BYTES = 32 << 20
"""About as much memory as the recorder takes, unless two stretches take more: it
holds one beside the one that grows, or nothing would be left after a picture.
"""

STRETCHES = 4
"""Parts that the newest steps are kept in."""

FEWEST_STEPS = 16
"""Steps of a stretch, however few are to be kept."""

_BYTES_PER_STEP = 500
_BYTES_PER_ROW = 200
_BYTES_PER_REQUEST = 600
_BYTES_PER_HASH = 80
_BYTES_PER_FREE_BLOCK = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """An event: at which look into the inbox, from 1, and when."""

    look: int
    unix_seconds: float
    event: Recorded


@dataclass(frozen=True, slots=True)
class End:
    """What ended the engine. poisoned: the mesh could not go on."""

    error: str
    poisoned: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """What was kept, oldest first. `steps` are those after `picture`.

    first_look: looks into the inbox up to the picture, last_look: up to the end.
    Times are seconds since the epoch.
    """

    setup: EngineSetup
    picture: EnginePicture
    first_look: int
    last_look: int
    events: tuple[Seen, ...]
    steps: tuple[StepRecord, ...]
    unix_seconds: float
    reason: str
    end: End | None = None


@dataclass(slots=True)
class _Stretch:
    """`fixed` are the bytes of its picture, `grown` those of what follows."""

    picture: EnginePicture
    first_look: int
    fixed: int
    grown: int = 0
    events: list[Seen] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)


class Recorder:
    """Keeps what the engine sees and does. Engine thread, but for `recording`."""

    def __init__(
        self,
        setup: EngineSetup,
        camera: Callable[[], EnginePicture],
        steps: int,
        *,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """At least `steps` newest steps are kept, if `max_bytes` allow it.

        `camera` shows the engine as it is, while no step is in flight.
        """
        self._setup = setup
        self._camera = camera
        self._steps = steps
        self._stretch_steps = max(FEWEST_STEPS, steps // STRETCHES)
        self._max_bytes = max_bytes
        self._clock = clock
        self._looks = 0
        self._due = True
        # Replaced as a whole, so that other threads can take it as it is.
        self._stretches: tuple[_Stretch, ...] = ()
        self._end: End | None = None
        self._overdue = False

    # -- what the engine tells ---------------------------------------------

    def looked(self) -> None:
        """The engine takes from its inbox what is there now."""
        self._looks += 1

    def saw(self, event: Event) -> None:
        """It takes this, and acts on it next."""
        if not self._stretches:
            return  # the first picture will show what it did
        recorded: Recorded
        size = _BYTES_PER_REQUEST
        if isinstance(event, Arrived):
            vocab_size = self._setup.site.vocab_size
            requests = [RecordedRequest.arriving(it, vocab_size) for it in event.batch]
            recorded = Arrivals(tuple(requests))
            size = sum(map(_size, requests))
        else:
            recorded = event
        stretch = self._stretches[-1]
        stretch.events.append(Seen(self._looks, self._clock(), recorded))
        self._grow(stretch, size)

    def step(self, record: StepRecord) -> None:
        """A step was applied."""
        if self._stretches:
            stretch = self._stretches[-1]
            stretch.steps.append(record)
            rows = sum(len(lane.rows) for lane in record.lanes)
            self._grow(stretch, _BYTES_PER_STEP + _BYTES_PER_ROW * rows)

    @property
    def overdue(self) -> bool:
        """Whether the next step should wait until none is in flight."""
        return self._overdue

    def standing(self) -> None:
        """No step is in flight, and the next one is about to be planned."""
        if not self._due:
            return
        picture = self._camera()
        stretch = _Stretch(picture, self._looks, _picture_size(picture))
        self._stretches = self._worth_keeping((*self._stretches, stretch))
        self._due = self._overdue = False

    def ended(self, error: BaseException) -> None:
        """The engine cannot go on."""
        poisoned = isinstance(error, MeshPoisoned)
        self._end = End(f"{type(error).__name__}: {error}", poisoned)

    # -- any thread --------------------------------------------------------

    def recording(self, reason: str) -> Recording | None:
        """What is kept; also while the engine hangs in a step. Any thread.

        None before the engine's first turn.
        """
        stretches = self._stretches
        if not stretches:
            return None
        picture = stretches[0].picture
        # In this order: what made a step happen is then there with it.
        steps = [step for it in stretches for step in it.steps.copy()]
        events = [seen for it in stretches for seen in it.events.copy()]
        return Recording(
            setup=self._setup,
            picture=picture,
            first_look=stretches[0].first_look,
            last_look=self._looks,
            events=tuple(events),
            steps=tuple(it for it in steps if it.number > picture.last_number),
            unix_seconds=self._clock(),
            reason=reason,
            end=self._end,
        )

    # -- bounds ------------------------------------------------------------

    def _grow(self, stretch: _Stretch, size: int) -> None:
        stretch.grown += size
        steps, room = len(stretch.steps), self._max_bytes // (2 * STRETCHES)
        full = max(steps / self._stretch_steps, stretch.grown / room)
        self._due |= full >= 1
        self._overdue |= full >= 2

    def _worth_keeping(self, stretches: tuple[_Stretch, ...]) -> tuple[_Stretch, ...]:
        while len(stretches) > 2:
            enough = sum(len(it.steps) for it in stretches[1:]) >= self._steps
            size = sum(it.fixed + it.grown for it in stretches)
            if not enough and size <= self._max_bytes:
                break
            stretches = stretches[1:]
        return stretches


def _size(request: RecordedRequest) -> int:
    return _BYTES_PER_REQUEST + _BYTES_PER_HASH * len(request.block_hashes)


def _picture_size(picture: EnginePicture) -> int:
    free = sum(len(it.pool.free) for it in picture.lanes)
    hashes = sum(len(it.pool.cached_keys) for it in picture.lanes)
    requests = sum(_size(it.request) for it in picture.sequences)
    return requests + _BYTES_PER_FREE_BLOCK * free + _BYTES_PER_HASH * hashes

"""The state of an engine at a moment at which nothing is in flight.

A recording is bounded, so most begin in the middle of the engine's life: with a
picture of everything that decides about the steps to come. It holds counts and
hashes and no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

from vllm.v1.request import RequestStatus

from device_service.control import StepControl
from device_service.kv.pool_picture import PoolPicture
from device_service.live import LiveRequests
from device_service.outcome import Outcomes
from device_service.recording.events import RecordedRequest
from device_service.scheduling.lane import Lane
from device_service.scheduling.planner import Planner
from device_service.sequence import OrderKey, Sequence


@dataclass(frozen=True, slots=True)
class SequencePicture:
    """A live request. `row` is the row in its lane, None while it waits.

    prefilling: prompt, or replayed, tokens remain. preempted: it waits because it
    lost its row. published_blocks: blocks that others may share. All tokens that
    are computed have been applied.
    """

    request: RecordedRequest
    lane: int
    row: int | None
    order: OrderKey
    output_tokens: int
    computed_tokens: int
    prefilling: bool
    preempted: bool
    preemptions: int
    shared_prefix_boundary: int
    published_blocks: int


@dataclass(frozen=True, slots=True)
class LanePicture:
    """A lane's pool, and who was preempted and not yet named in a step."""

    pool: PoolPicture
    untold: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnginePicture:
    """last_number: of the newest planned step. steps_allowed: what a run of single
    steps has left, None without one. sequences: in the order of their arrival.
    """

    last_number: int
    arrivals: int
    interleave_runs: tuple[int, int]
    paused: bool
    steps_allowed: int | None
    failed_in_a_row: int
    sequences: tuple[SequencePicture, ...]
    lanes: tuple[LanePicture, ...]


@dataclass(frozen=True, slots=True)
class Camera:
    """Takes pictures of the engine that these parts belong to. Engine thread."""

    lanes: Rows[Lane]
    live: LiveRequests
    planner: Planner
    outcomes: Outcomes
    control: StepControl

    def __call__(self) -> EnginePicture:
        """The engine as it is; no step may be in flight."""
        return EnginePicture(
            last_number=self.planner.last_number,
            arrivals=self.live.arrivals,
            interleave_runs=self.planner.interleave_runs,
            paused=self.control.paused,
            steps_allowed=self.control.steps_allowed,
            failed_in_a_row=self.outcomes.failed_in_a_row,
            sequences=tuple(map(self._sequence, self.live)),
            lanes=tuple(
                LanePicture(lane.kv.picture(), tuple(lane.preempted))
                for lane in self.lanes
            ),
        )

    def _sequence(self, sequence: Sequence) -> SequencePicture:
        request, row = sequence.request, sequence.row
        kv = self.lanes[sequence.lane].kv
        return SequencePicture(
            request=RecordedRequest.living(sequence),
            lane=sequence.lane,
            row=row,
            order=sequence.order,
            output_tokens=request.num_output_tokens,
            computed_tokens=request.num_computed_tokens,
            prefilling=request.is_prefill_chunk,
            preempted=request.status == RequestStatus.PREEMPTED,
            preemptions=request.num_preemptions,
            shared_prefix_boundary=request.shared_prefix_boundary,
            published_blocks=0 if row is None else kv.published_blocks(row),
        )

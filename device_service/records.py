"""The records that travel between the stations of a request.

Deciding and doing are separate: a station hands the next one a frozen record.
Nothing here imports grpc, generated code or the mesh. Times are seconds on
`time.monotonic()` unless a name says otherwise.

What is made once per row and step is a named tuple: a frozen dataclass costs
four times as much to make, and the host's time per step is what all wait for.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from vllm.v1.request import Request

from ttserve.errors import TTServeError

# --------------------------------------------------------------------------
# Session -> engine


class AbortCause(enum.Enum):
    """Why a request is stopped from outside."""

    CLIENT = "client"
    STOP_STRING = "stop_string"
    SHUTDOWN = "shutdown"
    SESSION_LOST = "session_lost"
    INSPECTOR = "inspector"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that passed admission, on its way into the engine's inbox.

    `request` is vLLM's; from here on only the engine thread touches it.
    `handle` is the submitter's own number for it. `top_logprobs` is how many
    alternatives the request itself asked for, None for no logprobs at all.
    `awaits_grammar` means that the engine must not schedule it before
    `Inbox.grammar_ready` names it.
    """

    request: Request
    sink: UpdateSink
    session_number: int
    handle: int
    external_request_id: str
    top_logprobs: int | None
    awaits_grammar: bool


# --------------------------------------------------------------------------
# Engine -> session


class FinishKind(enum.Enum):
    """How a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request. `error` is set with ERROR and only there."""

    kind: FinishKind
    stop_token_id: int | None = None
    error: TTServeError | None = None
    abort_cause: AbortCause | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position; `chosen_rank` is 1 for the best and 0
    where it is not known, which a device's sampler may leave open.

    `top_ids` and `top_values` are parallel, best first, already cut to what
    the request asked for. Values may be -inf.
    """

    chosen: float
    chosen_rank: int
    top_ids: list[int]
    top_values: list[float]


class EventKind(enum.Enum):
    """What happened to a request, for queue and prefill times."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


@dataclass(frozen=True, slots=True)
class PrefillReport:
    """How the prompt was prefilled, in tokens; with a request's first output."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """A request's life in the engine, told with its final update.

    `steps` counts the device steps that it had a share in. `scheduled` is when it
    got its first row, `first_token` when its first token was there; None if that
    never happened.
    """

    lane: int
    steps: int
    preemptions: int
    output_tokens: int
    queued: float
    scheduled: float | None
    first_token: float | None
    ended: float


class RequestUpdate(NamedTuple):
    """What one step did for one request.

    Every admitted request gets exactly one update with `finish`, aborted and
    failed ones included; `history` comes with it. `logprobs` is parallel to
    `token_ids` or None.
    """

    handle: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: Finish | None = None
    prefill: PrefillReport | None = None
    events: tuple[tuple[EventKind, float], ...] = ()
    history: RequestHistory | None = None


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Scheduler state as one session sees it; the prefix counters are deltas."""

    running: int
    waiting: int
    kv_usage: float
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_requests: int = 0


@dataclass(frozen=True, slots=True)
class StepUpdates:
    """Everything one step did for one session."""

    step_number: int
    monotonic_seconds: float
    updates: list[RequestUpdate]
    stats: SessionStats


class UpdateSink(Protocol):
    """Where the engine leaves updates: a session, or one Generate call."""

    def deliver(self, updates: StepUpdates) -> None:
        """Take one step's updates. Engine thread; must not block or raise."""


# --------------------------------------------------------------------------
# Inside the engine


class Phase(enum.Enum):
    """What a step does, for all lanes together (contract 2.2)."""

    PREFILL = "prefill"
    DECODE = "decode"


class SamplingSite(enum.Enum):
    """Where a step's tokens are sampled; decided once per batch (contract 2.8)."""

    DEVICE = "device"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SamplingVerdict:
    """The site and the reason for it, as the step record shows it."""

    site: SamplingSite
    reason: str


@dataclass(frozen=True, slots=True)
class OverlapVerdict:
    """Whether a step may be submitted before the one in flight is applied."""

    overlap: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StepIntent:
    """The phase for all lanes, why, and whether the step may overlap."""

    phase: Phase
    phase_reason: str
    overlap: OverlapVerdict


class PlannedRow(NamedTuple):
    """One request's share of a step.

    Tokens [start, start + num_tokens) go through the model. `row` is the row
    in the merged batch (lane * rows_per_lane + local row). `emits` is False for
    a chunk that does not complete the prompt.
    """

    request_id: str
    lane: int
    row: int
    start: int
    num_tokens: int
    emits: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step, decided: rows of all lanes, sorted by row. Never empty."""

    number: int
    intent: StepIntent
    rows: tuple[PlannedRow, ...]
    sampling: SamplingVerdict
    preempted: tuple[str, ...]
    waiting: int

    @property
    def phase(self) -> Phase:
        """The phase of the whole step."""
        return self.intent.phase


# --------------------------------------------------------------------------
# Step records and state, for the Inspector


class RowRecord(NamedTuple):
    """One request's share of a recorded step."""

    row: int
    request_id: str
    external_request_id: str
    start_position: int
    tokens: int
    intermediate_chunk: bool
    produced_tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """One lane's share of a recorded step; blocks without the null block."""

    lane: int
    rows: tuple[RowRecord, ...]
    used_blocks: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Everything about one step; times in microseconds.

    `host_us` is planning to submission, `device_us` submission to completion
    as the mesh's worker saw it, `readback_us` completion to the end of host
    sampling, `host_gap_us` how long the mesh was idle before the step.
    """

    number: int
    phase: Phase
    phase_reason: str
    lanes: tuple[LaneRecord, ...]
    scheduled_tokens: int
    produced_tokens: int
    sampling: SamplingVerdict
    overlap: OverlapVerdict
    preempted: tuple[str, ...]
    host_us: int
    device_us: int
    readback_us: int
    host_gap_us: int
    unix_seconds: float
    padded_rows: int
    waiting: int
    error: str = ""


class WaitingReason(enum.Enum):
    """Why a request waits."""

    CAPACITY = "capacity"
    GRAMMAR = "grammar"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class RowState:
    """An occupied row."""

    row: int
    request_id: str
    external_request_id: str
    session_number: int
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    blocks: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class WaitingState:
    """A waiting request."""

    request_id: str
    session_number: int
    prompt_tokens: int
    reason: WaitingReason
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane; blocks without the null block."""

    lane: int
    total_rows: int
    rows: tuple[RowState, ...]
    waiting: tuple[WaitingState, ...]
    total_blocks: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class EngineState:
    """A picture of the engine between two steps."""

    step_number: int
    paused: bool
    lanes: tuple[LaneState, ...]
    steps_in_flight: int
    grammars: int


# --------------------------------------------------------------------------
# Sampling on the host


class SamplingRow(NamedTuple):
    """One row of logits and whose it is.

    `position` is the absolute position of the token about to be chosen
    (prompt + output so far); seeded draws are keyed by it (contract 2.10).
    """

    request: Request
    row: int
    position: int
    top_logprobs: int | None

    @property
    def seed(self) -> int | None:
        """The request's seed; None when chance is not seeded."""
        params = self.request.sampling_params
        assert params is not None
        return params.seed

    @property
    def request_id(self) -> str:
        """vLLM's internal id."""
        return self.request.request_id


@dataclass(frozen=True, slots=True)
class Sampled:
    """Chosen tokens, parallel to the rows that went in.

    `errors` names rows that cannot be sampled (for example a grammar that has
    no legal token): index -> error; their token id is meaningless.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, TTServeError] = field(default_factory=dict)

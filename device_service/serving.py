"""What the device service can do at the moment, for everything that answers.

It grows while the service starts: nothing, then the model's description, then
an engine; and it ends with a refusal. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.tokenizers import TokenizerLike

from device_service.admission import Admission
from device_service.bundle import Bundle
from device_service.description import ModelDescription
from device_service.handle import EngineHandle
from device_service.journal import OnEnd, RequestJournal
from ttserve.errors import Reason, TTServeError

if TYPE_CHECKING:
    from device_service.session import Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Published:
    """The model, as soon as its limits are known.

    `tokenizer` is the one that vLLM loads for it. Only gateways that send text or
    stop strings have a use for it: None where none may.
    """

    description: ModelDescription
    bundle: Bundle
    tokenizer: TokenizerLike | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A warmed-up engine and the way into it.

    `ended` is `engine.died` on the event loop, made once: to cancel a future of
    one's own would cancel the engine's.
    """

    engine: EngineHandle
    admission: Admission
    ended: asyncio.Future[None]

    @classmethod
    def of(cls, engine: EngineHandle, admission: Admission) -> Running:
        """Over an engine that runs."""
        ended = asyncio.wrap_future(engine.died)
        ended.add_done_callback(asyncio.Future.exception)  # seen, if nobody asks
        return cls(engine, admission, ended)

    async def answer(self, question: Future[T]) -> T:
        """Wait for the engine's answer, but not for an engine that has ended."""
        answer = asyncio.wrap_future(question)
        waited: set[asyncio.Future[Any]] = {answer, self.ended}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise TTServeError(Reason.MESH_POISONED, "the engine has ended")
        finally:
            answer.cancel()

    async def outcome(self) -> BaseException | None:
        """Wait for the engine's end, and what ended it."""
        await asyncio.wait({self.ended})
        return self.ended.exception()


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What the operator may set.

    `silence_limit` is in seconds: a frontend that sends nothing for so long is
    dropped. `log_requests` says what becomes of each request at INFO. `vllm_grpc`
    serves vllm.grpc.engine.VllmEngine too. `on_request_end` is told of every
    admitted request's end. Beyond the last two, a frontend or a watcher of steps is
    turned away.
    """

    silence_limit: float = 5.0
    step_control: bool = False
    log_requests: bool = False
    vllm_grpc: bool = False
    on_request_end: OnEnd | None = None
    max_sessions: int = 1024
    max_watchers: int = 64


@dataclass
class Serving:
    """Shared by the servicers. Its parts appear in order and never change.

    `stage_seconds` is how long each stage of the start took, as it ends.
    """

    instance_id: str
    options: ServiceOptions
    checkers: Executor
    published: Published | None = None
    running: Running | None = None
    refusal: TTServeError | None = None
    sessions: dict[int, Session] = field(default_factory=dict)
    clock: Callable[[], float] = monotonic
    stage_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.journal = RequestJournal(
            log_requests=self.options.log_requests, on_end=self.options.on_request_end
        )
        self._started = self.clock()
        self._sessions_opened = 0
        self._merged_steps = 0

    @property
    def uptime_seconds(self) -> float:
        """Seconds since the service started."""
        return self.clock() - self._started

    @property
    def merged_steps(self) -> int:
        """Steps that were merged for slow readers, in all sessions so far."""
        live = sum(session.merged_steps for session in self.sessions.values())
        return self._merged_steps + live

    def forget(self, session: Session) -> None:
        """A session has ended."""
        del self.sessions[session.number]
        self._merged_steps += session.merged_steps

    def next_session_number(self) -> int:
        """Number the sessions, from 1."""
        self._sessions_opened += 1
        return self._sessions_opened

    def require_model(self) -> Published:
        """The model, or NOT_READY."""
        if self.published is None:
            raise TTServeError(Reason.NOT_READY, "the model is still being loaded")
        return self.published

    def require_engine(self) -> Running:
        """The engine for a look or a change; NOT_READY until there is one."""
        if self.running is None:
            raise TTServeError(Reason.NOT_READY, "the mesh is still warming up")
        return self.running

    def require_open(self) -> Running:
        """The engine for new work; a refusal while starting or draining."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # raised many times
        return self.require_engine()

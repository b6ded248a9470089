"""The requests that live in the engine, from admission to their final update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Rows

from vllm.v1.request import Request, RequestStatus

from device_service.records import AbortCause, Admitted, Finish, FinishKind
from device_service.sampling.facts import SamplingFacts
from device_service.sampling.interface import HostSampling
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence
from device_service.updates import UpdateBoard
from ttserve.errors import TTServeError

STATUS_OF = {
    FinishKind.STOP: RequestStatus.FINISHED_STOPPED,
    FinishKind.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
    FinishKind.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishKind.ERROR: RequestStatus.FINISHED_ERROR,
    FinishKind.REPETITION: RequestStatus.FINISHED_REPETITION,
}


class LiveRequests:
    """Owns every live `Sequence`: the only place where one begins or ends."""

    def __init__(
        self,
        lanes: Rows[Lane],
        board: UpdateBoard,
        sampling: HostSampling,
        *,
        by_priority: bool,
        clock: Callable[[], float],
    ) -> None:
        self._lanes = lanes
        self._board = board
        self._sampling = sampling
        self._by_priority = by_priority
        self._clock = clock
        self._arrivals = 0
        self.by_id: dict[str, Sequence] = {}

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def admit_all(self, batch: Rows[Admitted]) -> None:
        """Queue requests, in order."""
        for admitted in batch:
            self._admit(admitted)

    def _admit(self, admitted: Admitted) -> None:
        """Queue a request in the least loaded lane, for its whole life."""
        lane = min(self._lanes, key=lambda item: (item.load, item.number))
        self._arrivals += 1
        priority = admitted.request.priority if self._by_priority else 0
        sequence = Sequence.admit(
            admitted,
            self._facts(admitted.request),
            lane=lane.number,
            order=(priority, self._arrivals),
            max_model_len=lane.limits.max_model_len,
            now=self._clock(),
        )
        self.by_id[sequence.request_id] = sequence
        lane.waiting.add(sequence)

    def _facts(self, request: Request) -> SamplingFacts:
        params = request.sampling_params
        assert params is not None
        vocab_size = self._sampling.site.vocab_size
        return SamplingFacts.of(params, request.num_prompt_tokens, vocab_size)

    @property
    def arrivals(self) -> int:
        """Requests admitted so far."""
        return self._arrivals

    def restore(self, arrivals: int, sequences: Iterable[tuple[Sequence, int]]) -> None:
        """Go on from a picture: requests, with how many blocks each may share."""
        self._arrivals = arrivals
        for sequence, published_blocks in sequences:
            self.by_id[sequence.request_id] = sequence
            self._lanes[sequence.lane].put_back(sequence, published_blocks)

    def grammar_ready(self, request_id: str, error: TTServeError | None) -> None:
        """Let a request go on whose grammar is compiled, or end it."""
        sequence = self.by_id.get(request_id)
        if sequence is None:
            return
        sequence.awaits_grammar = False
        if error is not None:
            self.end(sequence, Finish(FinishKind.ERROR, error=error))
            return
        sequence.request.status = RequestStatus.WAITING

    def abort(self, request_ids: Rows[str], cause: AbortCause) -> None:
        """End requests at once, wherever they are; unknown ids are ignored."""
        for request_id in request_ids:
            sequence = self.by_id.get(request_id)
            if sequence is not None:
                self.end(sequence, Finish(FinishKind.ABORT, abort_cause=cause))

    def end(self, sequence: Sequence, finish: Finish) -> None:
        """End a request that produced nothing with its end; everything is freed."""
        self._board.post(sequence, [], finish=finish)
        self.release(sequence, finish)

    def fail_step(self, sequence: Sequence, error: TTServeError) -> None:
        """End a request whose step failed: what its blocks hold is worthless."""
        finish = Finish(FinishKind.ERROR, error=error)
        self._board.post(sequence, [], finish=finish)
        if sequence.row is not None:
            self._lanes[sequence.lane].discard(sequence)
            self._forget(sequence, finish)
        else:
            self.release(sequence, finish)

    def release(self, sequence: Sequence, finish: Finish) -> None:
        """Free what an ended request held; its final update has been posted."""
        self._lanes[sequence.lane].release(sequence)
        self._forget(sequence, finish)

    def _forget(self, sequence: Sequence, finish: Finish) -> None:
        sequence.is_finished = True
        sequence.request.status = STATUS_OF[finish.kind]
        del self.by_id[sequence.request_id]
        self._sampling.sampler.release(sequence.request_id)
        self._sampling.grammars.release(sequence.request_id)

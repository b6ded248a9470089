"""Structured output: grammars compiled off the engine thread, and their masks.

vLLM's `StructuredOutputManager` keeps the rules (when reasoning has ended, what a
mask allows, when a grammar is finished), always on xgrammar. Compiling is ours:
its own pool lets one hostile schema hold up all others, for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
from vllm.config import VllmConfig
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
)
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from device_service.deadline_pool import DeadlinePool, Job, Overrun, TooManyOverruns
from device_service.grammar_text import (
    normalise_structured_outputs,
    refusal,
    short_text,
)
from ttserve.errors import Reason, TTServeError, unsupported

__all__ = ["Grammars", "normalise_structured_outputs"]

logger = logging.getLogger(__name__)

OnReady = Callable[[str, TTServeError | None], None]

COMPILING_THREADS = 4
MAX_ABANDONED = 4
REMEMBERED_OVERRUNS = 32
MAX_FOLLOWING_SECONDS = 0.25
MAX_FOLLOWING_SECONDS_PER_TOKEN = 0.001
"""CPU time of the engine thread that a request's tokens may take in its grammar,
in all. Some ten times what grammars take; ambiguous ones take it cubed."""

# vLLM fills more masks than this in one call with threads of its own.
_MASKS_AT_ONCE = 128


@dataclass(slots=True, eq=False)
class _Entry:
    """A live request's grammar, compiled or not, and the time spent in it."""

    key: StructuredOutputKey
    grammar: Future[StructuredOutputGrammar]
    job: Job[StructuredOutputGrammar]
    followed_seconds: float = 0.0


class Grammars:
    """Implements `GrammarKeeper`. `start` may be called from any thread."""

    def __init__(self, config: VllmConfig, *, compile_timeout: float = 10.0) -> None:
        self._config = config
        self._manager = StructuredOutputManager(config)
        self._timeout = compile_timeout
        self._pool = DeadlinePool(
            threads=COMPILING_THREADS,
            seconds=compile_timeout,
            most_abandoned=MAX_ABANDONED,
        )
        self._masks_at_once = min(config.scheduler_config.max_num_seqs, _MASKS_AT_ONCE)
        self._mask_words = -(-config.model_config.get_vocab_size() // 32)
        self._building = threading.Lock()
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._overran: dict[StructuredOutputKey, None] = {}

    @property
    def live(self) -> int:
        """Grammars held or being compiled for live requests."""
        return len(self._entries)

    @property
    def abandoned(self) -> int:
        """Compilations that still run although their time is over."""
        return self._pool.abandoned

    def warm_up(self) -> None:
        """Prepare the tokenizer for grammars, which takes a while; at start."""
        try:
            self._backend().compile_grammar(StructuredOutputOptions.JSON_OBJECT, "")
        except TTServeError as error:
            logger.warning("structured output is not served: %s", error.message)

    def start(self, request: Request, on_ready: OnReady) -> None:
        """Begin to compile; `on_ready` comes once, from any thread.

        It does not come after `release`.
        """
        structured, params = request.structured_output_request, request.sampling_params
        assert structured is not None
        assert params is not None
        key = structured.structured_output_key
        entry = _Entry(
            key,
            Future(),
            Job(
                partial(self._compile, key, set(params.all_stop_token_ids)),
                partial(self._finish, request.request_id, on_ready),
            ),
        )
        structured.grammar = entry.grammar
        with self._lock:
            self._entries[request.request_id] = entry
            overran = key in self._overran
        if overran:
            entry.job.done(Overrun())
        else:
            self._pool.submit(entry.job)

    def bitmask(self, requests: Sequence[Request]) -> np.ndarray | None:
        """Rows of allowed tokens, see `GrammarKeeper`; grammars must be ready."""
        places = [i for i, r in enumerate(requests) if r.use_structured_output]
        if not places:
            return None
        mask = np.full((len(requests), self._mask_words), -1, dtype=np.int32)
        for begin in range(0, len(places), self._masks_at_once):
            some = places[begin : begin + self._masks_at_once]
            by_id = {requests[i].request_id: requests[i] for i in some}
            # The result is a view of the manager's one buffer.
            filled = self._manager.grammar_bitmask(by_id, list(by_id), {})
            assert filled is not None
            mask[some] = filled
        return mask

    def accept(self, request: Request, token_id: int) -> bool:
        """Advance the request's grammar by its newest token, already appended.

        False: it cannot advance, or took so long that it would hold up others.
        """
        if not request.use_structured_output:
            return True
        began = time.thread_time()
        accepted = self._manager.accept_tokens(request, [token_id])
        spent = time.thread_time() - began
        return accepted and self._in_time(request, spent)

    def _in_time(self, request: Request, spent: float) -> bool:
        """Book the time of one more token; False when it was too much in all."""
        entry = self._entries[request.request_id]
        entry.followed_seconds += spent
        limit = MAX_FOLLOWING_SECONDS
        limit += MAX_FOLLOWING_SECONDS_PER_TOKEN * request.num_output_tokens
        if entry.followed_seconds <= limit:
            return True
        logger.warning(
            "request %s: its grammar is too ambiguous, %d tokens took %.2f s",
            request.request_id,
            request.num_output_tokens,
            entry.followed_seconds,
        )
        return False

    def release(self, request_id: str) -> None:
        """Drop the request's grammar; unknown ids are ignored."""
        with self._lock:
            entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._pool.cancel(entry.job)

    # -- compiling ---------------------------------------------------------

    def _backend(self) -> StructuredOutputBackend:
        """The one backend, built on first use. Any thread."""
        with self._building:
            if self._manager.backend is None:
                if self._config.model_config.skip_tokenizer_init:
                    raise unsupported("structured_output", "the model has no tokenizer")
                try:
                    self._manager.backend = XgrammarBackend(
                        self._config,
                        tokenizer=self._manager.tokenizer,
                        vocab_size=self._config.model_config.get_vocab_size(),
                    )
                except (RuntimeError, TypeError, ValueError) as error:
                    message = f"xgrammar cannot use the tokenizer: {short_text(error)}"
                    raise unsupported("structured_output", message) from error
            return self._manager.backend

    def _compile(
        self, key: StructuredOutputKey, stop_token_ids: set[int]
    ) -> StructuredOutputGrammar:
        kind, text = key
        return self._backend().compile_grammar(kind, text, stop_token_ids)

    def _finish(
        self,
        request_id: str,
        on_ready: OnReady,
        outcome: StructuredOutputGrammar | BaseException,
    ) -> None:
        """Hand over what became of a compilation, if its request still lives."""
        with self._lock:
            entry = self._entries.get(request_id)
            if entry is not None and isinstance(outcome, Overrun):
                self._overran[entry.key] = None
                if len(self._overran) > REMEMBERED_OVERRUNS:
                    del self._overran[next(iter(self._overran))]
        if entry is None:
            return
        if isinstance(outcome, BaseException):
            on_ready(request_id, self._failure(outcome))
        else:
            entry.grammar.set_result(outcome)
            on_ready(request_id, None)

    def _failure(self, error: BaseException) -> TTServeError:
        if isinstance(error, TTServeError):
            return error
        if isinstance(error, Overrun):
            return refusal(
                f"the grammar is too complex: it takes more than {self._timeout:g} s "
                "to compile"
            )
        if isinstance(error, TooManyOverruns):
            return TTServeError(
                Reason.NOT_READY,
                "grammars cannot be compiled now: others have taken too long",
                retry_after=self._timeout,
            )
        return refusal(f"the grammar cannot be compiled: {short_text(error)}")

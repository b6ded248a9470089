"""The worker's side of `bench.worker`: questions in, answers out, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from bench.measure import Arrival, Prompt

Run = Callable[[list[Prompt], int], Sequence[Sequence[Arrival]]]
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def take_stdout() -> IO[str]:
    """The pipe to whoever started us; all that prints goes to stderr from now on.

    To be called before anything is imported that prints.
    """
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def serve(pipe: IO[str], answer: Answer, about: dict[str, Any]) -> None:
    """Say that we are ready, then answer until stdin ends."""
    _send(pipe, about)
    for line in sys.stdin:
        _send(pipe, answer(json.loads(line)))


def serve_batches(pipe: IO[str], run: Run, about: dict[str, Any]) -> None:
    """Run one batch per question."""
    serve(pipe, lambda q: {"streams": run(q["prompts"], q["max_tokens"])}, about)


def _send(pipe: IO[str], message: dict[str, Any]) -> None:
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()

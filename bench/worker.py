"""Starts worker processes and speaks JSON lines with them.

A worker's stdout carries answers, its stderr goes to a file whose end is shown
when the worker fails. It ends when its stdin does, so none outlives us.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.measure import Batch, Prompt
from bench.process_log import ProcessLog
from bench.registry import CannotRun

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 900.0
ANSWER_SECONDS = 600.0
STOP_SECONDS = 20.0

THREADS = 2
"""Of every engine that computes, ours and the peer's."""

EQUAL_TERMS = {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"}
"""Two engines are loaded at once and take turns: neither may spin while idle."""


class Worker:
    """A process that runs batches. `about` is what it said of itself when ready."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = ProcessLog()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.file,
            text=True,
            cwd=ROOT,
            env={**os.environ, **EQUAL_TERMS, **(environment or {})},
        )
        self.about: dict[str, Any] = {}

    def __enter__(self) -> Worker:
        try:
            self.about = self._answer(START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, prompts: Sequence[Prompt], max_tokens: int) -> Batch:
        """Run one batch to its end."""
        answer = self.ask({"prompts": list(prompts), "max_tokens": max_tokens})
        return Batch.of(answer["streams"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Put one question and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer(ANSWER_SECONDS)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise CannotRun(f"{self.name} said nothing for {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise CannotRun(f"{self.name} ended: {self._log.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

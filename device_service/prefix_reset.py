"""Forgetting cached prefixes, by request of a person."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future

from device_service.live import LiveRequests
from device_service.scheduling.lane import Lane

logger = logging.getLogger(__name__)


class PrefixReset:
    """Resets that were asked for and wait until no step is in flight.

    While one waits no step overlaps another. A forced one takes the running
    requests back to their queues first; they replay prompt and output, as after
    any preemption, and since nothing is in flight then, no token of theirs has to
    be dropped (contract 2.2 drops them). Engine thread.
    """

    def __init__(self, lanes: Sequence[Lane], live: LiveRequests) -> None:
        self._lanes = lanes
        self._live = live
        self._asked: list[tuple[Future[bool], bool]] = []

    @property
    def pending(self) -> bool:
        """Whether one waits."""
        return bool(self._asked)

    def ask(self, answer: Future[bool], *, preempt_running: bool) -> None:
        """Note a reset; `answer` says whether prefixes were forgotten."""
        if answer.set_running_or_notify_cancel():
            self._asked.append((answer, preempt_running))

    def run(self) -> None:
        """Do what was asked for. No step may be in flight."""
        asked, self._asked = self._asked, []
        for answer, preempt_running in asked:
            answer.set_result(self._reset(preempt_running=preempt_running))

    def _reset(self, *, preempt_running: bool) -> bool:
        if preempt_running:
            count = sum(lane.preempt_all() for lane in self._lanes)
            logger.info("prefix cache reset; %d requests start over", count)
        elif len(self._live):
            return False
        return all([lane.kv.forget_prefixes() for lane in self._lanes])

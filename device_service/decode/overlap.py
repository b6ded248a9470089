"""Whether a decode step may be submitted before the one in flight is read.

Overlap takes that the device goes on from its own tokens and positions: the
same rows, the same requests, sampled on the device, with nothing that the host
must first work into the next step. `DRAIN_REASONS` is the whole rule (contract
2.7), in the order in which reasons are given; whatever holds, the steps in
flight are waited for and applied before the next one is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from device_service.decode.pipeline import InFlight
from device_service.records import OverlapVerdict, Phase, SamplingSite
from device_service.sampling.facts import SamplingFacts
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence


@dataclass(frozen=True, slots=True)
class OverlapPolicy:
    """What is fixed for the life of the service.

    asynchronous: asynchronous scheduling is on. resident_inputs: the adapter
    decodes asynchronously from what is on the device, which takes a trace.
    custom_processors: logits processors are configured.
    """

    asynchronous: bool
    resident_inputs: bool
    custom_processors: bool


@dataclass(frozen=True, slots=True)
class OverlapQuestion:
    """The step in flight, and what has happened since it was planned.

    facts: of its rows. prefill_due: a prefill step could move something.
    rows_changed: a row was taken or left. last_token_in_flight: some row's last
    token is being made, so it would not take part. blocks_short: rows that
    step into a new block find none free, and nobody can give way while its own
    token is in flight.
    """

    policy: OverlapPolicy
    phase: Phase
    site: SamplingSite
    facts: Rows[SamplingFacts]
    prefill_due: bool = False
    rows_changed: bool = False
    last_token_in_flight: bool = False
    blocks_short: bool = False

    def has(self, wanted: Callable[[SamplingFacts], object]) -> bool:
        """Whether any row is so."""
        return any(wanted(facts) for facts in self.facts)

    def host_only(self, name: str) -> bool:
        """Whether some row has a parameter that only the host can honour."""
        return any(facts.host_only == name for facts in self.facts)


_OF_THE_BATCH: Mapping[str, Callable[[OverlapQuestion], bool]] = {
    "sync_mode": lambda it: not it.policy.asynchronous,
    "inputs_not_resident": lambda it: not it.policy.resident_inputs,
    "after_prefill": lambda it: it.phase is Phase.PREFILL,
    "structured_output": lambda it: it.has(lambda f: f.structured),
    "penalties": lambda it: it.has(lambda f: f.penalised),
    "allowed_token_ids": lambda it: it.host_only("allowed_token_ids"),
    "bad_words": lambda it: it.host_only("bad_words"),
    "logit_bias": lambda it: it.host_only("logit_bias"),
    "min_p": lambda it: it.host_only("min_p"),
    "min_tokens": lambda it: it.has(lambda f: f.min_tokens),
    "logprobs": lambda it: it.has(lambda f: f.num_logprobs >= 0),
    "custom_logits_processors": lambda it: it.policy.custom_processors,
    "host_sampling": lambda it: it.site is not SamplingSite.DEVICE,
}
"""Stay as they are for as long as the same rows decode."""

_OF_THE_MOMENT: Mapping[str, Callable[[OverlapQuestion], bool]] = {
    "prefill_due": lambda it: it.prefill_due,
    "rows_changed": lambda it: it.rows_changed,
    "last_token_in_flight": lambda it: it.last_token_in_flight,
    "block_pressure": lambda it: it.blocks_short,
}

DRAIN_REASONS = {**_OF_THE_BATCH, **_OF_THE_MOMENT}
"""Reasons to drain, first match first: name -> whether it holds."""

NOTHING_IN_FLIGHT = OverlapVerdict(overlap=False, reason="nothing_in_flight")
PAUSED = OverlapVerdict(overlap=False, reason="paused")
RESETTING = OverlapVerdict(overlap=False, reason="prefix_reset")
STEADY = OverlapVerdict(overlap=True, reason="steady")


def decide(question: OverlapQuestion) -> OverlapVerdict:
    """Whether the step after the one in flight may overlap it. No state."""
    return _first(DRAIN_REASONS, question) or STEADY


def _first(
    reasons: Mapping[str, Callable[[OverlapQuestion], bool]], question: OverlapQuestion
) -> OverlapVerdict | None:
    for reason, holds in reasons.items():
        if holds(question):
            return OverlapVerdict(overlap=False, reason=reason)
    return None


class OverlapRule:
    """`decide` for the engine; what stays as it is is answered from memory.

    Engine thread.
    """

    def __init__(self, policy: OverlapPolicy, lanes: Rows[Lane]) -> None:
        self._policy = policy
        self._lanes = lanes
        self._batch: tuple[Phase, SamplingSite, Rows[Sequence]] | None = None
        self._of_batch: OverlapVerdict | None = None

    def __call__(self, newest: InFlight | None) -> OverlapVerdict:
        """The verdict on the step after `newest`, the one submitted last.

        None: nothing is in flight.
        """
        if newest is None:
            return NOTHING_IN_FLIGHT
        phase, site = newest.plan.phase, newest.plan.sampling.site
        batch = (phase, site, newest.sequences)
        if batch != self._batch:
            self._batch = batch
            facts = tuple(sequence.sampling for sequence in newest.sequences)
            question = OverlapQuestion(self._policy, phase, site, facts)
            self._of_batch = _first(_OF_THE_BATCH, question)
        return self._of_batch or self._of_moment(newest) or STEADY

    def _of_moment(self, newest: InFlight) -> OverlapVerdict | None:
        lanes = self._lanes
        return _first(
            _OF_THE_MOMENT,
            OverlapQuestion(
                self._policy,
                newest.plan.phase,
                newest.plan.sampling.site,
                (),
                prefill_due=any(lane.wants_prefill for lane in lanes),
                rows_changed=sum(lane.moves for lane in lanes) != newest.moves,
                last_token_in_flight=any(s.is_spoken_for for s in newest.sequences),
                blocks_short=any(lane.is_short_of_blocks for lane in lanes),
            ),
        )

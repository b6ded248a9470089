"""Where a step's tokens are sampled: one verdict for all its rows, with its reason.

The device samples only if nothing in the step speaks against it (contract 2.8);
otherwise the host samples every row. `HOST_REASONS` is the whole rule, in the
order in which reasons are given. What is looked at are the rows of the step:
a request that stands still does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Literal

from device_service.records import Phase, PlannedRow, SamplingSite, SamplingVerdict
from device_service.sampling.facts import SamplingFacts
from device_service.sequence import Sequence

LOGPROB_DEVICES = (8, 32)
"""Devices per lane on which the sampler gives log probabilities."""


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """What is fixed for the life of the service.

    mode: `tt.sample_on_device_mode`. max_device_top_k: the largest top_k that
    the device honours, None for any. device_penalties, device_grammar,
    top_logprobs: whether it applies penalties, grammar masks, and gives the best
    tokens' log probabilities. raw_logprobs: whether those before all processing
    are wanted, the only ones it gives. devices: per lane. custom_processors:
    whether logits processors are configured. seeded_on_host:
    `tt.seeded_sampling_policy` is `host`.
    """

    vocab_size: int
    mode: Literal["all", "decode_only"] | None = None
    max_device_top_k: int | None = None
    device_penalties: bool = True
    device_grammar: bool = False
    top_logprobs: bool = False
    raw_logprobs: bool = True
    devices: int = 1
    custom_processors: bool = False
    seeded_on_host: bool = False


@dataclass(frozen=True, slots=True)
class SiteQuestion:
    """A step whose site is to be decided; `facts` are parallel to `rows`."""

    policy: SitePolicy
    phase: Phase
    rows: Rows[PlannedRow]
    facts: Rows[SamplingFacts]

    @property
    def prefill(self) -> bool:
        """Whether the step is a prefill."""
        return self.phase is Phase.PREFILL

    def has(self, wanted: Callable[[SamplingFacts], object]) -> bool:
        """Whether any row is so."""
        return any(wanted(facts) for facts in self.facts)

    def host_only(self, name: str) -> bool:
        """Whether this is what keeps some row on the host."""
        return any(facts.host_only == name for facts in self.facts)

    def awaits_min_tokens(self) -> bool:
        """Whether some row's next token may not end it yet."""
        return any(
            facts.min_tokens and facts.awaits_min_tokens(row.start + row.num_tokens)
            for row, facts in zip(self.rows, self.facts, strict=True)
        )


def _exceeds_top_k(it: SiteQuestion) -> bool:
    most = it.policy.max_device_top_k
    return most is not None and it.has(lambda f: not f.greedy and f.top_k > most)


HOST_REASONS: Mapping[str, Callable[[SiteQuestion], bool]] = {
    "mode_unset": lambda it: it.policy.mode is None,
    "mode_decode_only": lambda it: it.policy.mode == "decode_only" and it.prefill,
    "intermediate_chunk": lambda it: not all(row.emits for row in it.rows),
    "custom_logits_processors": lambda it: it.policy.custom_processors,
    "device_penalties": lambda it: (
        not it.policy.device_penalties and it.has(lambda f: f.penalised)
    ),
    # The contract hands a device the tokens so far at decode steps only.
    "penalties_in_prefill": lambda it: it.prefill and it.has(lambda f: f.penalised),
    "allowed_token_ids": lambda it: it.host_only("allowed_token_ids"),
    "bad_words": lambda it: it.host_only("bad_words"),
    "logit_bias": lambda it: it.host_only("logit_bias"),
    "min_p": lambda it: it.host_only("min_p"),
    "thinking_token_budget": lambda it: it.host_only("thinking_token_budget"),
    "logprob_token_ids": lambda it: it.host_only("logprob_token_ids"),
    "min_tokens": SiteQuestion.awaits_min_tokens,
    "device_grammar": lambda it: (
        not it.policy.device_grammar and it.has(lambda f: f.structured)
    ),
    "grammar_in_prefill": lambda it: it.prefill and it.has(lambda f: f.structured),
    "grammar_with_logprobs": lambda it: (
        it.has(lambda f: f.structured) and it.has(lambda f: f.num_logprobs >= 0)
    ),
    "logprobs_mode": lambda it: (
        not it.policy.raw_logprobs and it.has(lambda f: f.num_logprobs >= 0)
    ),
    "logprobs_devices": lambda it: (
        it.policy.devices not in LOGPROB_DEVICES
        and it.has(lambda f: f.num_logprobs >= 0)
    ),
    "top_logprobs": lambda it: (
        not it.policy.top_logprobs and it.has(lambda f: f.num_logprobs > 0)
    ),
    "max_device_top_k": _exceeds_top_k,
    "seeded_sampling_policy": lambda it: (
        it.policy.seeded_on_host and it.has(lambda f: f.seed is not None)
    ),
}
"""Reasons to sample on the host, first match first: name -> whether it holds."""

NOTHING_EMITS = SamplingVerdict(SamplingSite.NONE, "intermediate_chunks")
ON_DEVICE = SamplingVerdict(SamplingSite.DEVICE, "eligible")


def decide(question: SiteQuestion) -> SamplingVerdict:
    """The site of one step. No state."""
    if not any(row.emits for row in question.rows):
        return NOTHING_EMITS
    for reason, holds in HOST_REASONS.items():
        if holds(question):
            return SamplingVerdict(SamplingSite.HOST, reason)
    return ON_DEVICE


class SiteRule:
    """`decide` for the planner; steady decode is answered from memory.

    Engine thread. `live` is every live request by its id.
    """

    def __init__(self, policy: SitePolicy, live: Mapping[str, Sequence]) -> None:
        self._policy = policy
        self._live = live
        self._decoding: list[str] = []
        self._verdict: SamplingVerdict | None = None

    def __call__(self, phase: Phase, rows: Rows[PlannedRow]) -> SamplingVerdict:
        """The site of a step with these rows."""
        if phase is Phase.PREFILL:
            return decide(self._question(phase, rows))
        request_ids = [row.request_id for row in rows]
        if self._verdict is not None and request_ids == self._decoding:
            return self._verdict
        question = self._question(phase, rows)
        verdict = decide(question)
        # All but one of the reasons stay what they are while the rows do.
        self._verdict = None if question.awaits_min_tokens() else verdict
        self._decoding = request_ids
        return verdict

    def _question(self, phase: Phase, rows: Rows[PlannedRow]) -> SiteQuestion:
        facts = [self._live[row.request_id].sampling for row in rows]
        return SiteQuestion(self._policy, phase, rows, facts)

"""The policy on recorded traffic: made-up chats that share system prompts.

`traffic.jsonl` has one request a line: when it came (seconds), how long it ran, and
its prompt as segments of [seed, tokens]; equal segments are equal text. The device
services of this test cache blocks by their whole text and run all they get.
"""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path

from frontend.routing.policy import load_margin
from frontend.routing.router import Router
from tests.support.fake_device import model
from ttserve.v1 import model_pb2

BLOCK = 64
BLOCKS_PER_DEVICE = 400
ROWS = 16
NAMES = ("a", "b", "c")

Choose = Callable[[Mapping[str, int], Sequence[int]], str]


@dataclass(frozen=True)
class Recorded:
    """One request of the recording."""

    at: float
    seconds: float
    tokens: tuple[int, ...]


@dataclass
class Device:
    """Runs everything at once, and keeps the blocks that were used last."""

    running: list[float] = field(default_factory=list)
    blocks: OrderedDict[tuple[int, ...], None] = field(default_factory=OrderedDict)

    def run(self, request: Recorded) -> int:
        """Start a request; the prompt tokens that were cached."""
        ends = range(BLOCK, len(request.tokens), BLOCK)
        prefixes = [request.tokens[:end] for end in ends]
        hits = 0
        while hits < len(prefixes) and prefixes[hits] in self.blocks:
            hits += 1
        for prefix in reversed(prefixes):
            self.blocks[prefix] = None
            self.blocks.move_to_end(prefix)
        while len(self.blocks) > BLOCKS_PER_DEVICE:
            self.blocks.popitem(last=False)
        self.running.append(request.at + request.seconds)
        return hits * BLOCK


@dataclass(frozen=True)
class Outcome:
    """What a policy made of the recording.

    `excess` is by how much the load of who was chosen exceeded the least, at most.
    """

    choices: tuple[str, ...]
    hit_share: float
    excess: int


@cache
def recording() -> tuple[Recorded, ...]:
    lines = Path(__file__).with_name("traffic.jsonl").read_text().splitlines()
    return tuple(
        Recorded(it["at"], it["seconds"], tuple(_tokens(it["prompt"])))
        for it in map(json.loads, lines)
    )


def _tokens(segments: list[tuple[int, int]]) -> list[int]:
    return [
        token
        for seed, count in segments
        for token in random.Random(seed).choices(range(50_000), k=count)
    ]


def replay(choose: Choose) -> Outcome:
    devices = {name: Device() for name in NAMES}
    choices, cached, total, excess = [], 0, 0, 0
    for request in recording():
        for device in devices.values():
            device.running = [end for end in device.running if end > request.at]
        loads = {name: len(device.running) for name, device in devices.items()}
        name = choose(loads, request.tokens)
        choices.append(name)
        excess = max(excess, loads[name] - min(loads.values()))
        cached += devices[name].run(request)
        total += len(request.tokens)
    return Outcome(tuple(choices), cached / total, excess)


def policy() -> Choose:
    served = model(
        scheduling=model_pb2.SchedulingInfo(rows_per_lane=ROWS),
        kv_cache=model_pb2.KvCacheInfo(
            prefix_caching=True, num_blocks=BLOCKS_PER_DEVICE, block_size=BLOCK
        ),
    )
    return Router(served).route


def round_robin() -> Choose:
    names = cycle(NAMES)
    return lambda loads, tokens: next(names)


def least_loaded() -> Choose:
    return lambda loads, tokens: min(loads, key=lambda name: loads[name])


def test_more_of_the_prompts_is_cached_than_without_affinity() -> None:
    ours = replay(policy()).hit_share
    assert ours > replay(round_robin()).hit_share + 0.1
    assert ours > replay(least_loaded()).hit_share + 0.1


def test_load_stays_balanced() -> None:
    outcome = replay(policy())
    assert outcome.excess < load_margin(ROWS)
    shares = Counter(outcome.choices)
    assert min(shares.values()) > len(outcome.choices) / 6


def test_the_same_traffic_goes_the_same_way() -> None:
    assert replay(policy()).choices == replay(policy()).choices

"""The policy on recorded traffic: chats that share system prompts, and single prompts.

`tests/recordings/chats.ttrec` is what a device service's flight recorder kept while
`tools/record_chats.py` talked to it: when requests came, how long they ran, and which
blocks of their prompts were equal. The device services of this test cache blocks by
their whole beginning and run all they get.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path

from device_service.codec.recording_file import decode
from device_service.recording.events import Arrivals
from frontend.routing.policy import load_margin
from frontend.routing.router import Router
from tests.support.fake_device import model
from ttserve.v1 import model_pb2

RECORDING = Path(__file__).parents[3] / "recordings" / "chats.ttrec"
BLOCKS_PER_DEVICE = 200
ROWS = 16
NAMES = ("a", "b", "c")

Choose = Callable[[Mapping[str, int], Sequence[int]], str]


@dataclass(frozen=True)
class Request:
    """When it came and was done, in seconds, and a prompt that shares what its did."""

    came: float
    done: float
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Traffic:
    """The requests of a recording, in order of their arrival."""

    block_size: int
    requests: tuple[Request, ...]


@dataclass
class Device:
    """Runs everything at once, and keeps the blocks that were used last."""

    block_size: int
    running: list[float] = field(default_factory=list)
    blocks: OrderedDict[tuple[int, ...], None] = field(default_factory=OrderedDict)

    def run(self, request: Request) -> int:
        """Start a request; the prompt tokens that were cached."""
        ends = range(self.block_size, len(request.tokens), self.block_size)
        prefixes = [request.tokens[:end] for end in ends]
        hits = 0
        while hits < len(prefixes) and prefixes[hits] in self.blocks:
            hits += 1
        for prefix in reversed(prefixes):
            self.blocks[prefix] = None
            self.blocks.move_to_end(prefix)
        while len(self.blocks) > BLOCKS_PER_DEVICE:
            self.blocks.popitem(last=False)
        self.running.append(request.done)
        return hits * self.block_size


@dataclass(frozen=True)
class Outcome:
    """What a policy made of the traffic.

    `excess` is by how much the load of who was chosen exceeded the least, at most.
    """

    choices: tuple[str, ...]
    hit_share: float
    excess: int


@cache
def traffic() -> Traffic:
    recording = decode(RECORDING.read_bytes())
    size = recording.setup.block_size
    done = {
        row.request_id: step.unix_seconds
        for step in recording.steps
        for lane in step.lanes
        for row in lane.rows
    }
    numbers: dict[bytes, int] = {}
    requests = []
    for seen in recording.events:
        if not isinstance(seen.event, Arrivals):
            continue
        for arrived in seen.event.requests:
            full = arrived.block_hashes[: arrived.prompt_tokens // size]
            tokens = [
                token
                for block in full
                for token in [numbers.setdefault(block, len(numbers) + 1)] * size
            ]
            tokens += [0] * (arrived.prompt_tokens - len(tokens))
            end = done[arrived.request_id]
            requests.append(Request(seen.unix_seconds, end, tuple(tokens)))
    return Traffic(size, tuple(requests))


def replay(choose: Choose) -> Outcome:
    devices = {name: Device(traffic().block_size) for name in NAMES}
    choices, cached, total, excess = [], 0, 0, 0
    for request in traffic().requests:
        for device in devices.values():
            device.running = [done for done in device.running if done > request.came]
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
            prefix_caching=True,
            num_blocks=BLOCKS_PER_DEVICE,
            block_size=traffic().block_size,
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
    in_one_place = replay(lambda loads, tokens: NAMES[0]).hit_share
    assert ours > in_one_place - 0.03


def test_load_stays_balanced() -> None:
    outcome = replay(policy())
    assert outcome.excess < load_margin(ROWS)
    shares = Counter(outcome.choices)
    assert min(shares.values()) > len(outcome.choices) / 6


def test_the_same_traffic_goes_the_same_way() -> None:
    assert replay(policy()).choices == replay(policy()).choices

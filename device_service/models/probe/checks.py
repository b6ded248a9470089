"""What an adapter must be able to do, one check each.

Every check puts requests through the adapter in some situation and compares
what they give with the same requests alone. The tokens are fixed beforehand, so
that a small difference stays one. The probe around the adapter judges the calls
meanwhile. A check that needs a declaration is left out without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from device_service.models.probe.exercise import GREEDY, Exercise, Walk

STEPS = 6
LONG = 40


class Wrong(Exception):
    """An adapter's answer is not what it should be; one line."""


@dataclass(frozen=True, slots=True)
class Check:
    """A situation. `needs`: capabilities without which it does not come up."""

    name: str
    rules: str
    run: Callable[[Exercise, float], None]
    needs: tuple[str, ...] = ()


def compare(
    what: str, found: Sequence[torch.Tensor], alone: Sequence[torch.Tensor], most: float
) -> None:
    """Raise Wrong unless the logits say the same.

    `most` is how far two distributions may be apart: the probability that would
    have to move to make one of the other, from 0 to 1.
    """
    if len(found) != len(alone):
        raise Wrong(f"{what}: {len(found)} steps gave logits, not {len(alone)}")
    for step, (here, there) in enumerate(zip(found, alone, strict=True)):
        apart = float((here.softmax(-1) - there.softmax(-1)).abs().sum() / 2)
        if not apart <= most:
            raise Wrong(
                f"{what}: after step {step} the probabilities are {apart:.2g} apart "
                f"from those of the request alone, more than {most:g}"
            )


def _alone(exercise: Exercise, seed: int, prompt: int, steps: int = STEPS) -> Walk:
    walk = exercise.walk(seed, prompt, steps)
    exercise.run([walk])
    exercise.leave(walk)
    return walk


def _same_twice(exercise: Exercise, most: float) -> None:
    first = _alone(exercise, 1, 9)
    second = exercise.again(first, 0)
    exercise.run([second])
    exercise.leave(second)
    compare("a request again, in other blocks", second.logits, first.logits, most)
    if torch.equal(first.logits[0], first.logits[-1]):
        raise Wrong("logits do not depend on what came before")


def _neighbours(exercise: Exercise, most: float) -> None:
    last = exercise.rows - 1
    places = sorted({last, 0, last // 2}, reverse=True)
    alone = [_alone(exercise, 10 + i, 5 + 7 * i) for i in range(len(places))]
    walks = []
    for i, row in enumerate(places):
        walks.append(exercise.again(alone[i], row))
        exercise.prefill([walks[-1]])
    for _ in range(STEPS):
        exercise.decode(walks)
    exercise.leave(*walks)
    for walk, reference in zip(walks, alone, strict=True):
        compare(f"row {walk.row} beside others", walk.logits, reference.logits, most)


def _together(exercise: Exercise, most: float) -> None:
    rows = range(min(exercise.rows, 3))
    alone = [_alone(exercise, 20 + i, 4 + 9 * i) for i in rows]
    walks = [exercise.again(alone[i], i) for i in rows]
    exercise.run(walks)
    exercise.leave(*walks)
    for walk, reference in zip(walks, alone, strict=True):
        compare("prompts of one prefill step", walk.logits, reference.logits, most)


def _every_size(exercise: Exercise, most: float) -> None:
    alone = _alone(exercise, 30, 6, steps=1)
    for row in range(exercise.rows):
        walk = exercise.again(alone, row)
        exercise.run([walk])
        exercise.leave(walk)
        compare(f"row {row} alone", walk.logits, alone.logits, most)


def _own_memory(exercise: Exercise, _: float) -> None:
    walk = exercise.walk(31, 6, STEPS)
    exercise.prefill([walk])
    exercise.decode([walk])
    kept, copy = walk.logits[-1], walk.logits[-1].clone()
    exercise.decode([walk])
    exercise.leave(walk)
    if not torch.equal(kept, copy):
        raise Wrong("logits that were read back change with the next step")


def _preempted(exercise: Exercise, most: float) -> None:
    alone = _alone(exercise, 32, 7)
    first = exercise.again(alone, 0)
    exercise.prefill([first])
    for _ in range(STEPS // 2):
        exercise.decode([first])
    exercise.leave(first)
    resumed = exercise.again(alone, exercise.rows - 1)
    resumed.prompt = first.done
    exercise.run([resumed])
    exercise.leave(resumed)
    found = [*first.logits[:-1], *resumed.logits]
    compare("a request that was preempted", found, alone.logits, most)


def _chunked(exercise: Exercise, most: float) -> None:
    alone, beside = _alone(exercise, 33, LONG), _alone(exercise, 34, 5)
    walk = exercise.again(alone, 0)
    others = [exercise.again(beside, exercise.rows - 1)] if exercise.rows > 1 else []
    for other in others:
        exercise.prefill([other])
    for until in (13, 29):
        exercise.prefill([walk], until=until)
        for other in others:
            exercise.decode([other])
    exercise.run([walk])
    exercise.leave(walk, *others)
    compare("the prompt", walk.logits, alone.logits, most)
    for other in others:
        compare("a row between the chunks", other.logits, beside.logits[:3], most)


def _prefix(exercise: Exercise, most: float) -> None:
    size = exercise.block_size
    alone = _alone(exercise, 35, 2 * size + 5)
    owner = exercise.again(alone, 0)
    exercise.prefill([owner])
    exercise.leave(owner)
    hit = exercise.again(alone, exercise.rows_per_lane - 1)
    free = [b for b in range(1, exercise.num_blocks) if b not in owner.blocks]
    hit.blocks = owner.blocks[:2] + free[: len(hit.blocks) - 2]
    hit.done = 2 * size
    exercise.run([hit])
    exercise.leave(hit)
    compare("a prompt whose first blocks are cached", hit.logits, alone.logits, most)


def _greedy(exercise: Exercise, seed: int) -> tuple[Walk, list[int]]:
    """A request that goes on from the best token each time, and those tokens."""
    walk = exercise.walk(seed, 8, STEPS)
    chosen: list[int] = []
    exercise.prefill([walk])
    for step in range(STEPS):
        chosen.append(int(walk.logits[-1].argmax()))
        walk.tokens[walk.prompt + step] = chosen[-1]
        exercise.decode([walk])
    chosen.append(int(walk.logits[-1].argmax()))
    exercise.leave(walk)
    return walk, chosen


def _on_device(exercise: Exercise, walk: Walk, row: int) -> Walk:
    """The same prompt, of which the device has chosen nothing yet."""
    device = exercise.again(walk, row)
    exercise.prefill([device])
    device.facts = GREEDY
    return device


def _device_greedy(exercise: Exercise, _: float) -> None:
    walk, chosen = _greedy(exercise, 36)
    device = _on_device(exercise, walk, exercise.rows - 1)
    for _ in range(STEPS):
        exercise.decode([device])
    exercise.leave(device)
    if device.sampled != chosen[1:]:
        raise Wrong(
            f"greedy on the device gives {device.sampled}, on the host {chosen[1:]}"
        )


def _ahead(exercise: Exercise, _: float) -> None:
    walk, chosen = _greedy(exercise, 39)
    device = _on_device(exercise, walk, 0)
    exercise.decode_ahead(device, STEPS)
    exercise.leave(device)
    if device.sampled != chosen[1:]:
        raise Wrong(
            f"steps ahead of their readback give {device.sampled}, one by one "
            f"{chosen[1:]}"
        )


def _device_seed(exercise: Exercise, _: float) -> None:
    top_k = min(8, exercise.capabilities.max_device_top_k or 8)
    top_k = min(8, exercise.capabilities.max_device_top_k or 8)
    facts = replace(
        GREEDY,
        temperature=2.0,
        top_k=top_k,
        top_p=0.95 if top_k > 1 else 0.0,
        seed=-(1 << 40) - 7,
    )
    found = []
    for row in (0, exercise.rows - 1):
        walk = exercise.walk(37, 8, STEPS, row)
        walk.facts = facts
        exercise.prefill([walk])
        for _ in range(STEPS):
            exercise.decode([walk])
        exercise.leave(walk)
        found.append(walk.sampled)
    if found[0] != found[1]:
        raise Wrong(f"one seed gives {found[0]} in row 0, but {found[1]} in the last")


def _device_grammar(exercise: Exercise, _: float) -> None:
    if not exercise.driver.device_grammar:
        raise Wrong("supports_device_grammar is declared but grammar was not enabled")
    walk = exercise.walk(38, 8, STEPS)
    walk.facts = GREEDY
    exercise.prefill([walk])
    words = -(-exercise.vocabulary // 32)
    for allowed in (5, 3, 70):
        mask = np.zeros((1, words), dtype=np.uint32)
        mask[0, allowed // 32] = np.uint32(1 << allowed % 32)
        handle = exercise.driver.decode(exercise.decode_input([walk], deferred=True))
        result = exercise.driver.sample_deferred(handle, mask.view(np.int32)).result()
        if result.tokens is None or int(result.tokens[0]) != allowed:
            raise Wrong(f"a mask that allows token {allowed} alone gives another")
    exercise.leave(walk)


SAMPLES = ("supports_sample_on_device",)

CHECKS = (
    Check("a request, twice", "1.7, 1.8", _same_twice),
    Check("prompts of different lengths in one prefill", "1.7", _together),
    Check("rows beside each other, read in any order", "1.8, 1.9", _neighbours),
    Check("a decode at every row", "1.6, 1.8", _every_size),
    Check("what was read stays as it is", "1.9", _own_memory),
    Check("preemption and resume", "1.12, 2.6", _preempted),
    Check("a prompt in chunks", "1.7, 2.4", _chunked, ("supports_chunked_prefill",)),
    Check("a cached prefix", "1.7, 2.6", _prefix, ("supports_prefix_caching",)),
    Check("greedy on the device", "1.8, 1.10", _device_greedy, SAMPLES),
    Check(
        "a step ahead of its readback",
        "1.9, 2.7",
        _ahead,
        (*SAMPLES, "supports_async_decode"),
    ),
    Check("a seed on the device", "1.5", _device_seed, SAMPLES),
    Check("masks on the device", "1.11", _device_grammar, ("supports_device_grammar",)),
)

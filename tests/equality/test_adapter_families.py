"""Every family, through the driver, against transformers' own `generate`.

Greedy tokens are equal and logits within 1e-4, whatever the chunks, pages and
rows. The reference runs each prompt alone, with transformers' own cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from device_service.mesh.cpu import CpuMesh
from device_service.mesh.driver import AdapterDriver, LoadSpec, load_model
from device_service.models.probe import probed
from device_service.models.registry import resolve_adapter
from tests.driving import Run, decode, prefill
from tests.tiny_models import FAMILIES, write_tiny_model

BLOCK = 16
LIMIT = 128
BLOCKS = 40
ROWS = 8
TOLERANCE = 1e-4
OUTPUT = 12

_generator = torch.Generator().manual_seed(7)
PROMPTS = [
    torch.randint(0, 256, (length,), generator=_generator).tolist()
    for length in (7, 50, 33)
]


@dataclass(frozen=True)
class Family:
    """One family's driver, and what transformers says."""

    driver: AdapterDriver
    tokens: list[list[int]]
    logits: list[torch.Tensor]


@pytest.fixture(scope="module")
def mesh() -> Iterator[CpuMesh]:
    mesh = CpuMesh()
    mesh.open()
    yield mesh
    mesh.close()


@pytest.fixture(scope="module", params=FAMILIES)
def family(
    request: pytest.FixtureRequest,
    mesh: CpuMesh,
    tmp_path_factory: pytest.TempPathFactory,
) -> Family:
    directory = tmp_path_factory.mktemp(request.param)
    model = write_tiny_model(request.param, directory)
    model.set_attn_implementation("eager")
    reference = [_generate(model, prompt) for prompt in PROMPTS]
    return Family(
        driver=_load(mesh, directory),
        tokens=[tokens for tokens, _ in reference],
        logits=[logits for _, logits in reference],
    )


def _generate(model: Any, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    answer = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=OUTPUT,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return answer.sequences[0, len(prompt) :].tolist(), torch.cat(answer.logits)


def _load(mesh: CpuMesh, directory: Path, rows: int = ROWS) -> AdapterDriver:
    config = AutoConfig.from_pretrained(directory)
    adapter = probed(resolve_adapter(config.architectures[0], mesh.kind))
    spec = LoadSpec(config, str(directory), torch.float32, LIMIT, BLOCK, rows)
    return load_model(adapter, mesh, spec).allocate(BLOCKS, LIMIT)


def _runs() -> list[Run]:
    """Three prompts on rows with gaps, in blocks with no order."""
    order = torch.randperm(BLOCKS - 1, generator=torch.Generator().manual_seed(3)) + 1
    blocks = order.tolist()
    per_run = LIMIT // BLOCK
    return [
        Run(prompt, row, blocks[index * per_run : (index + 1) * per_run])
        for index, (prompt, row) in enumerate(zip(PROMPTS, (4, 0, 2), strict=True))
    ]


def _check(family: Family, runs: Sequence[Run], prompts: Sequence[int]) -> None:
    """The runs, now over, gave what their prompts give alone."""
    for run, number in zip(runs, prompts, strict=True):
        family.driver.release_row(run.row)
        difference = (torch.stack(run.logits) - family.logits[number]).abs().max()
        assert float(difference) < TOLERANCE
        assert run.tokens == family.tokens[number]


def test_whole_prompts_together(family: Family) -> None:
    runs = _runs()
    prefill(family.driver, [(run, 0, len(run.prompt)) for run in runs])
    for _ in range(OUTPUT - 1):
        decode(family.driver, runs)
    _check(family, runs, (0, 1, 2))


def test_chunks_between_decode_steps(family: Family) -> None:
    """The long prompt comes in three chunks while a short one decodes."""
    short, long, _ = _runs()
    prefill(family.driver, [(short, 0, 7)])
    for start, end in ((0, 16), (16, 41), (41, 50)):
        prefill(family.driver, [(long, start, end)])
        decode(family.driver, [short])
    while len(long.tokens) < OUTPUT:
        together = [long] if len(short.tokens) == OUTPUT else [long, short]
        decode(family.driver, together)
    _check(family, (short, long), (0, 1))


def test_prefix_in_shared_blocks(family: Family) -> None:
    """A second request starts behind two blocks that the first one wrote."""
    _, first, spare = _runs()
    prefill(family.driver, [(first, 0, 50)])
    second = Run(first.prompt, 3, [*first.blocks[:2], *spare.blocks[:4]])
    prefill(family.driver, [(second, 32, 50)])
    for _ in range(OUTPUT - 1):
        decode(family.driver, [first, second])
    _check(family, (first, second), (1, 1))


def test_a_lost_window_or_sink_would_be_noticed(mesh: CpuMesh, tmp_path: Path) -> None:
    """The negative control: the same weights without the feature differ by far."""
    model = write_tiny_model("gpt-oss", tmp_path)
    model.set_attn_implementation("eager")
    tokens = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        right = model(tokens).logits
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(-1e4)
        without_sinks = model(tokens).logits
    assert float((right - without_sinks).abs().max()) > 100 * TOLERANCE
    config = AutoConfig.from_pretrained(tmp_path)
    config.layer_types = ["full_attention"] * 3
    config.save_pretrained(tmp_path)
    run = _runs()[1]
    prefill(_load(mesh, tmp_path), [(run, 0, 50)])
    assert float((run.logits[0] - right[0, -1]).abs().max()) > 100 * TOLERANCE

"""The generic adapter: rows by themselves, lanes, precision, loading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, set_seed
from transformers import models as families

from device_service.mesh.cpu import CpuMesh
from device_service.mesh.driver import AdapterDriver, LoadSpec, load_model
from device_service.models.hf.packing import PackedLinear, WideLinear, pack_linears
from device_service.models.registry import resolve_adapter
from tests.driving import Run, decode, prefill
from tests.tiny_models import FAMILIES, tiny_model, write_tiny_model

BLOCK = 16
LIMIT = 128
BLOCKS = 40
PROMPT = list(range(40, 77))


@pytest.fixture(scope="module")
def mesh() -> Iterator[CpuMesh]:
    mesh = CpuMesh()
    mesh.open()
    yield mesh
    mesh.close()


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family in ("llama", "qwen3-moe"):
        made[family] = tmp_path_factory.mktemp(family)
        write_tiny_model(family, made[family])
    return made


def _driver(
    mesh: CpuMesh,
    directory: Path,
    *,
    lanes: int = 1,
    dtype: torch.dtype = torch.float32,
) -> AdapterDriver:
    config = AutoConfig.from_pretrained(directory)
    spec = LoadSpec(config, str(directory), dtype, LIMIT, BLOCK, 4, lanes)
    adapter = resolve_adapter(config.architectures[0], "cpu")
    return load_model(adapter, mesh, spec).allocate(BLOCKS, LIMIT)


def _next_logits(driver: AdapterDriver, neighbours: list[Run], row: int = 1) -> Any:
    run = Run(PROMPT, row, [5, 3, 17])
    for other in [run, *neighbours]:
        prefill(driver, [(other, 0, len(other.prompt))])
    decode(driver, [run, *neighbours])
    return run.logits[-1]


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_a_row_does_not_depend_on_its_neighbours(
    mesh: CpuMesh, directories: dict[str, Path], family: str
) -> None:
    """Bit for bit, at the same decode shape."""
    driver = _driver(mesh, directories[family])
    alone = _next_logits(driver, [Run([1], 3, [39])])
    for prompt in ([9, 8, 7], list(range(120)), [200] * 60):
        blocks = list(range(20, 28))
        crowded = _next_logits(
            driver, [Run(prompt, 3, blocks), Run(PROMPT[::-1], 0, [6, 7, 8])]
        )
        assert torch.equal(alone, crowded)


def test_a_row_does_not_depend_on_its_place(
    mesh: CpuMesh, directories: dict[str, Path]
) -> None:
    """To the last bits: some processors round the rows of one product differently."""
    driver = _driver(mesh, directories["llama"])
    last = Run([1], 3, [39])
    first, *others = (_next_logits(driver, [last], row=row) for row in (0, 1, 2))
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-6)


def test_lanes_have_pools_of_their_own(
    mesh: CpuMesh, directories: dict[str, Path]
) -> None:
    """Equal block ids in two lanes; row 5 is row 1 of the second lane."""
    one = _driver(mesh, directories["llama"])
    two = _driver(mesh, directories["llama"], lanes=2)
    prompts = (PROMPT, PROMPT[::-1])
    expected = [Run(prompt, 0, [5, 3, 17]) for prompt in prompts]
    for run in expected:
        prefill(one, [(run, 0, len(run.prompt))])
        for _ in range(3):
            decode(one, [run])
    runs = [
        Run(prompt, row, [5, 3, 17])
        for prompt, row in zip(prompts, (0, 5), strict=True)
    ]
    prefill(two, [(run, 0, len(run.prompt)) for run in runs])
    for _ in range(3):
        decode(two, runs)
    assert [run.tokens for run in runs] == [run.tokens for run in expected]


def test_a_failing_step_fails_alone(
    mesh: CpuMesh, directories: dict[str, Path]
) -> None:
    driver = _driver(mesh, directories["llama"])
    broken = Run([10_000], 2, [7])  # no such token: the embedding raises
    with pytest.raises(IndexError):
        prefill(driver, [(broken, 0, 1)])
    run = Run(PROMPT, 0, [5, 3, 17])
    prefill(driver, [(run, 0, len(PROMPT))])
    decode(driver, [run])
    assert torch.isfinite(run.logits[-1]).all()


def test_logits_may_be_written_to(mesh: CpuMesh, directories: dict[str, Path]) -> None:
    driver = _driver(mesh, directories["llama"])
    first = _next_logits(driver, [])
    kept = first.clone()
    first.fill_(0)
    assert first.dtype == torch.float32
    assert torch.equal(_next_logits(driver, []), kept)


def test_warm_up_runs_every_bucket(mesh: CpuMesh, directories: dict[str, Path]) -> None:
    config = AutoConfig.from_pretrained(directories["llama"])
    adapter = resolve_adapter(config.architectures[0], "cpu")
    made: list[Any] = []

    class Kept(adapter):  # type: ignore[misc,valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    spec = LoadSpec(config, str(directories["llama"]), torch.float32, LIMIT, BLOCK, 4)
    driver = load_model(Kept, mesh, spec).allocate(BLOCKS, LIMIT)
    lines: list[str] = []
    driver.warm_up(lines.append)
    assert len(lines) == 4
    run = Run(PROMPT[:3], 0, [4])
    prefill(driver, [(run, 0, 3)])
    decode(driver, [run])
    long = Run(PROMPT, 1, [5, 3, 17])
    prefill(driver, [(long, 0, len(PROMPT))])
    decode(driver, [run, long])
    assert made[0].decode_shapes.unwarmed == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_near(
    mesh: CpuMesh, directories: dict[str, Path], dtype: torch.dtype
) -> None:
    runs = []
    for precision in (torch.float32, dtype):
        driver = _driver(mesh, directories["llama"], dtype=precision)
        runs.append(Run(PROMPT, 0, [5, 3, 17]))
        prefill(driver, [(runs[-1], 0, len(PROMPT))])
    exact, rough = (run.logits[0] for run in runs)
    assert float(torch.cosine_similarity(exact, rough, dim=0)) > 0.99


def test_bytes_per_block_of_latents(mesh: CpuMesh, tmp_path: Path) -> None:
    """DeepSeek keeps compressed latents: 32 + 8 numbers a token and layer."""
    write_tiny_model("deepseek-v3", tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    adapter = resolve_adapter(config.architectures[0], "cpu")
    spec = LoadSpec(config, str(tmp_path), torch.float32, LIMIT, BLOCK, 4)
    assert load_model(adapter, mesh, spec).bytes_per_block == 3 * BLOCK * (32 + 8) * 4


@pytest.mark.parametrize("family", ["gemma3", "mistral-sliding"])
def test_multimodal_models_load_text_only(
    mesh: CpuMesh, tmp_path: Path, family: str
) -> None:
    set_seed(0)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = FAMILIES[family]().to_dict()
    model: Any
    if family == "gemma3":
        model = transformers.Gemma3ForConditionalGeneration(
            families.Gemma3Config(
                text_config=text, vision_config=vision, mm_tokens_per_image=4
            )
        )
    else:
        model = transformers.Mistral3ForConditionalGeneration(
            families.Mistral3Config(
                text_config=text,
                vision_config=vision | {"model_type": "pixtral", "head_dim": 16},
                tie_word_embeddings=False,
            )
        )
    model.eval().save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0, -1]
    run = Run(PROMPT, 0, [5, 3, 17])
    prefill(_driver(mesh, tmp_path), [(run, 0, len(PROMPT))])
    assert float((run.logits[0] - expected).abs().max()) < 1e-4


# What oneDNN packs bf16 for; others refuse, which ends a start.
MADE = (
    PackedLinear
    if torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    else WideLinear
)


def test_packing_rounds_no_worse() -> None:
    """Against float32, bf16 as it is served is about as far off as plain bf16."""
    exact, plain, packed = (
        tiny_model("qwen2", dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.bfloat16)
    )
    assert pack_linears(packed) > 0
    assert any(isinstance(layer, MADE) for layer in packed.modules())
    for length in (1, 8, 40):
        tokens = torch.arange(length)[None]
        with torch.inference_mode():
            right, near, far = (
                model(tokens).logits.float() for model in (exact, plain, packed)
            )
        error, packed_error = (
            float((logits - right).abs().mean()) for logits in (near, far)
        )
        assert packed_error < 1.3 * error


def test_packing_leaves_what_it_does_not_know() -> None:
    class Special(torch.nn.Linear):
        pass

    model = torch.nn.Module()
    model.special = Special(4, 4, dtype=torch.bfloat16)
    model.exact = torch.nn.Linear(4, 4)
    model.q_proj = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    assert pack_linears(model) == 1
    assert isinstance(model.special, Special)
    assert isinstance(model.exact, torch.nn.Linear)
    assert isinstance(model.q_proj, MADE)


@pytest.mark.parametrize("rows", [1, 31, 32, 200])
@pytest.mark.parametrize("biased", [True, False])
def test_without_instructions_for_bf16(rows: int, *, biased: bool) -> None:
    """Every number of rows is right to a rounding of the exact product."""
    torch.manual_seed(rows)
    weight, states = torch.randn(24, 64).bfloat16(), torch.randn(rows, 64).bfloat16()
    bias = torch.randn(24).bfloat16() if biased else None
    exact = states.double() @ weight.double().T
    if bias is not None:
        exact = exact + bias.double()
    output = WideLinear(weight, bias)(states)
    assert output.dtype is torch.bfloat16
    torch.testing.assert_close(output.double(), exact, rtol=2**-7, atol=2**-7)


def test_siblings_answer_in_any_order() -> None:
    """Also when one is called twice, or with an input of its own."""
    gate, up = (torch.nn.Linear(8, n, dtype=torch.bfloat16) for n in (4, 6))
    model = torch.nn.Module()
    model.gate_proj, model.up_proj = gate, up
    assert pack_linears(model) == 1
    first, second = torch.randn(2, 3, 8).bfloat16()
    with torch.inference_mode():
        for layer, ours, states in [
            (gate, model.gate_proj, first),
            (up, model.up_proj, first),
            (up, model.up_proj, second),
            (gate, model.gate_proj, first),
            (gate, model.gate_proj, second),
            (up, model.up_proj, second),
        ]:
            torch.testing.assert_close(
                ours(states), layer(states), rtol=0.02, atol=0.02
            )


def test_auto_model_knows_every_family() -> None:
    """Their configs are of classes that `AutoModelForCausalLM` makes models of."""
    for family, config in FAMILIES.items():
        with torch.device("meta"):
            assert AutoModelForCausalLM.from_config(config()), family

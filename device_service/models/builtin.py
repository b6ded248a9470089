"""The families of models that tt-metal has adapters for, by dotted path.

Nothing here is imported: a path is looked up when its architecture is served.
Architectures are the names of checkpoints, without the TT prefix of contract 2.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ttserve.errors import StartupError

_GENERATORS = "models.tt_transformers.tt.generator_vllm"
_GALAXY = "models.demos.llama3_70b_galaxy.tt.generator_vllm"
_TEST_MODELS = "models.vllm_test_utils"


@dataclass(frozen=True, slots=True)
class Versions:
    """The implementations of one architecture, by the value of `variable`.

    Without a value the first one is used.
    """

    architecture: str
    variable: str
    paths: Mapping[str, str]

    def choose(self, value: str | None) -> str:
        """The dotted path of a version. Raises StartupError for an unknown one."""
        if value is None:
            return next(iter(self.paths.values()))
        if value not in self.paths:
            raise StartupError(
                f"{self.variable}={value}: there is no such version; use "
                f"{' or '.join(self.paths)}, or leave it unset"
            )
        return self.paths[value]


LLAMA = Versions(
    "LlamaForCausalLM",
    "TT_LLAMA_TEXT_VER",
    {
        "tt_transformers": f"{_GENERATORS}:LlamaForCausalLM",
        "llama3_70b_galaxy": f"{_GALAXY}:LlamaForCausalLM",
        "llama2_70b": "models.demos.t3000.llama2_70b.tt.generator_vllm:"
        "TtLlamaForCausalLM",
        "llama31_8b_qb2": "models.demos.llama31_8b_qb2.tt.generator_vllm:"
        "LlamaForCausalLM",
    },
)
QWEN3 = Versions(
    "Qwen3ForCausalLM",
    "TT_QWEN3_TEXT_VER",
    {
        "tt_transformers": f"{_GENERATORS}:QwenForCausalLM",
        "qwen3_32b_galaxy": f"{_GALAXY}:QwenForCausalLM",
    },
)
QWEN35 = Versions(
    "Qwen3_5ForConditionalGeneration",
    "TT_QWEN35_TEXT_VER",
    {
        "qwen36_blackhole": "models.demos.blackhole.qwen36.tt.qwen36_vllm:"
        "Qwen36ForCausalLM"
    },
)

_GEMMA4 = "models.demos.gemma4.tt.generator_vllm:Gemma4ForCausalLM"
MODELS: Mapping[str, str] = {
    "MllamaForConditionalGeneration": f"{_GENERATORS}:MllamaForConditionalGeneration",
    "Qwen2ForCausalLM": f"{_GENERATORS}:QwenForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "models.demos.qwen25_vl.tt.generator_vllm:"
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration": "models.demos.qwen3_vl.tt.generator_vllm:"
    "Qwen3VLForConditionalGeneration",
    "MistralForCausalLM": f"{_GENERATORS}:MistralForCausalLM",
    "Mistral3ForConditionalGeneration": f"{_GENERATORS}:"
    "Mistral3ForConditionalGeneration",
    "Gemma3ForConditionalGeneration": f"{_GENERATORS}:Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": _GEMMA4,
    "DeepseekV3ForCausalLM": "models.demos.deepseek_v3.tt.generator_vllm:"
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM": f"{_GENERATORS}:GptOssForCausalLM",
}

_DIFFUSION_GEMMA = (
    "models.experimental.diffusion_gemma.tt.generator_vllm:DiffusionGemmaForCausalLM"
)
ALWAYS: Mapping[str, str] = {
    "DiffusionGemmaForBlockDiffusion": _DIFFUSION_GEMMA,
    "DiffusionGemmaForCausalLM": _DIFFUSION_GEMMA,
}
"""Those that stay when the others are turned off."""

TEST_MODELS: Mapping[str, str] = {
    "DummyNoOpModel": f"{_TEST_MODELS}.no_op_test.test_model:DummyNoOpModel",
    "DummyT3000MultiProcessModel": f"{_TEST_MODELS}.t3000_multiproc_test.test_model:"
    "DummyT3000MultiProcessModel",
    "DummyDualGlxModel": f"{_TEST_MODELS}.dual_glx_ccl_test.test_model:"
    "DummyDualGlxModel",
}
"""tt-metal's models that measure or check the host, without weights."""

"""Weights from a directory or the hub, as a text decoder ready to be paged."""

from __future__ import annotations

from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from device_service.models.hf.attention import ATTENTION_NAME, register_paged_attention
from device_service.models.hf.experts import EXPERTS_NAME, register_steady_experts
from device_service.models.refusals import TEXT_ONLY_ARCHITECTURES
from ttserve.errors import StartupError

TEXT_ONLY_KEYS = {
    r"^language_model\.": "",
    r"^model\.language_model\.": "model.",
}
"""How the names of a multimodal checkpoint become those of its text model."""


def load_decoder(hf_config: Any) -> Any:
    """Load the model that `hf_config` describes and names the place of.

    Raises StartupError when weights are missing, damaged or do not fit.
    """
    register_paged_attention()
    register_steady_experts()
    options: dict[str, Any] = {}
    config = hf_config
    if set(hf_config.architectures or ()) & TEXT_ONLY_ARCHITECTURES:
        config = hf_config.get_text_config()
        options["key_mapping"] = TEXT_ONLY_KEYS
    verbosity = transformers_logging.get_verbosity()
    # Its report on unused tensors is long where a vision tower is left out, and
    # what is missing is refused below.
    transformers_logging.set_verbosity_error()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            hf_config.name_or_path,
            config=config,
            dtype=hf_config.dtype,
            revision=hf_config._commit_hash,  # noqa: SLF001 - set by our own loader
            attn_implementation=ATTENTION_NAME,
            output_loading_info=True,
            **options,
        )
        model, report = loaded
        model.set_experts_implementation(EXPERTS_NAME)
    except KeyError as error:
        if ATTENTION_NAME not in error.args:
            raise _cannot_load(hf_config, f"unknown key {error}") from error
        raise _cannot_load(hf_config, "its attention cannot be paged") from error
    except (
        ImportError,
        OSError,
        RuntimeError,
        SafetensorError,
        ValueError,
    ) as error:
        raise _cannot_load(hf_config, _first_line(error)) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    for key in ("missing_keys", "mismatched_keys"):
        if names := sorted(str(name) for name in report[key]):
            raise _cannot_load(
                hf_config,
                f"{len(names)} tensors are {key.removesuffix('_keys')}, "
                f"among them {names[0]}",
            )
    model.requires_grad_(requires_grad=False)
    return model.eval()


def _cannot_load(hf_config: Any, reason: str) -> StartupError:
    return StartupError(f"cannot load model {hf_config.name_or_path!r}: {reason}")


def _first_line(error: BaseException) -> str:
    lines = (str(error) or type(error).__name__).strip().splitlines()
    return lines[0]

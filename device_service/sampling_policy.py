"""From a launch to who samples its tokens, and where (contract 2.8)."""

from __future__ import annotations

from device_service.grammar import Grammars
from device_service.mesh.interface import Driver, Mesh
from device_service.resolve import Resolved
from device_service.sampling.host_sampler import HostSampler
from device_service.sampling.interface import HostSampling
from device_service.sampling.site import SitePolicy

TOP_LOGPROBS_MODEL_TYPES = frozenset({"gpt_oss"})
"""Model types whose device sampler gives the best tokens' log probabilities."""


def host_sampling(resolved: Resolved, mesh: Mesh, driver: Driver) -> HostSampling:
    """The sampler and the grammars, warm: the first request must not pay."""
    sampler = HostSampler(
        resolved.vllm_config,
        resolved.vllm_config.model_config.get_vocab_size(),
        resolved.shape.total_rows,
        # Where the mesh is ours, host and device draw alike.
        position_keyed_seeds=mesh.kind != "ttnn",
    )
    grammars = Grammars(resolved.vllm_config)
    grammars.warm_up()
    site = site_policy(
        resolved,
        mesh,
        custom_processors=sampler.has_custom_processors,
        device_grammar=driver.device_grammar,
    )
    return HostSampling(sampler, grammars, site)


def site_policy(
    resolved: Resolved,
    mesh: Mesh,
    *,
    custom_processors: bool,
    device_grammar: bool,
) -> SitePolicy:
    """What the launch, the model and the mesh say about the sampling site.

    `device_grammar`: whether the loaded model applies masks on the device.
    """
    tt = resolved.config.tt
    model = resolved.vllm_config.model_config
    declared = resolved.capabilities
    rows, columns = mesh.grid
    synchronous = not resolved.vllm_config.scheduler_config.async_scheduling
    return SitePolicy(
        vocab_size=model.get_vocab_size(),
        mode=tt.sample_on_device_mode,
        max_device_top_k=declared.max_device_top_k,
        device_penalties=declared.supports_device_penalties,
        device_grammar=device_grammar and synchronous,
        top_logprobs=model.hf_config.model_type in TOP_LOGPROBS_MODEL_TYPES,
        raw_logprobs=model.logprobs_mode == "raw_logprobs",
        devices=max(rows * columns // resolved.shape.lanes, 1),
        custom_processors=custom_processors,
        seeded_on_host=tt.seeded_sampling_policy == "host",
    )

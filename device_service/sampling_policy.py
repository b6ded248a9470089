"""From a launch to who samples its tokens, and where (contract 2.8)."""

from __future__ import annotations

import logging

from device_service.grammar import Grammars
from device_service.mesh.interface import Driver, Mesh
from device_service.resolve import Resolved
from device_service.sampling.host_sampler import HostSampler
from device_service.sampling.interface import HostSampling
from device_service.sampling.recipe import GREEDY_BELOW, effective_top_k
from device_service.sampling.site import SitePolicy

logger = logging.getLogger(__name__)

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
    if (advice := top_k_advice(site, resolved)) is not None:
        logger.warning("%s", advice)
    return HostSampling(sampler, grammars, site)


def top_k_advice(site: SitePolicy, resolved: Resolved) -> str | None:
    """What to set, where requests that say nothing would all go to the host."""
    most = site.max_device_top_k
    defaults = resolved.vllm_config.model_config.get_diff_sampling_param()
    top_k = effective_top_k(defaults.get("top_k", 0), site.vocab_size)
    if site.mode is None or most is None or top_k <= most:
        return None
    if defaults.get("temperature", 1.0) < GREEDY_BELOW:
        return None
    return (
        f"requests without top_k will be sampled on the host, because the device takes "
        f"at most {most}: set --override-generation-config '{{\"top_k\": {most}}}'"
    )


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

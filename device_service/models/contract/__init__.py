"""The model contract: how the device service calls a model adapter.

Adapters of tt-metal are written against these calls, so names, keywords and
shapes are theirs to rely on. `Adapter` is what every one has; each Protocol of
`hooks` is one optional hook, recognised by its presence; `calls` has the
keywords of each call and when they are sent. docs/MODEL_CONTRACT.md is the
guide, `device_service.models.probe` the check.

Shapes: `n` rows of a prefill, `B` rows of a decode batch, `W` columns of a page
table, `V` vocabulary. Row `r` of a decode batch of `lanes` lanes belongs to
lane r // (B // lanes), and its page table names blocks of that lane's pool.
Row and state slot are one here: a request keeps its row until it finishes or is
preempted, so no state ever moves.
"""

from __future__ import annotations

from device_service.models.contract.adapter import Adapter
from device_service.models.contract.calls import (
    DecodeCall,
    PrefillCall,
    WarmUpDecodeCall,
    WarmUpPrefillCall,
)
from device_service.models.contract.hooks import (
    AllocatesPerLayer,
    AllocatesUniform,
    CapturesDeviceGrammar,
    CountsShapes,
    DescribesKVLayers,
    EnablesDeviceGrammar,
    PoisonsDeferred,
    ReadsDecodeOutput,
    ReadsPrefillOutput,
    ReleasesCaptures,
    ReleasesRequests,
    SamplesDeferred,
)
from device_service.models.contract.values import (
    KVLayer,
    KVLayerSpec,
    KVShape,
    TTSamplingParams,
)

__all__ = [
    "Adapter",
    "AllocatesPerLayer",
    "AllocatesUniform",
    "CapturesDeviceGrammar",
    "CountsShapes",
    "DecodeCall",
    "DescribesKVLayers",
    "EnablesDeviceGrammar",
    "KVLayer",
    "KVLayerSpec",
    "KVShape",
    "PoisonsDeferred",
    "PrefillCall",
    "ReadsDecodeOutput",
    "ReadsPrefillOutput",
    "ReleasesCaptures",
    "ReleasesRequests",
    "SamplesDeferred",
    "TTSamplingParams",
    "WarmUpDecodeCall",
    "WarmUpPrefillCall",
]

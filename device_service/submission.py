"""A submission as the codec hands it over: well formed, not yet admitted."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.engine import EngineCoreRequest


@dataclass(frozen=True, slots=True)
class Group:
    """Ties the children of one n > 1 request together; `count` is at least 2."""

    group_id: int
    count: int


@dataclass(frozen=True, slots=True)
class Submission:
    """One generation that a client asks for.

    `handle` is the client's number for it on its stream. Every sampling value
    of `request` is set. Whether the model can serve it is for admission to say.
    """

    handle: int
    request: EngineCoreRequest
    external_request_id: str
    group: Group | None = None

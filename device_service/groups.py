"""Children of one request with n > 1: admitted together or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from device_service.admission import Candidate
from device_service.submission import Group
from ttserve.errors import TTServeError, invalid_field


@dataclass(slots=True)
class Family:
    """Children that have arrived, by handle; the family is decided as a whole.

    A child is a candidate, or the error that refuses it, or None when the
    frontend aborted it meanwhile.
    """

    count: int
    children: dict[int, Candidate | TTServeError | None] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every child has arrived."""
        return len(self.children) >= self.count

    @property
    def candidates(self) -> list[Candidate]:
        """The children that can be admitted, in the order of arrival."""
        return [c for c in self.children.values() if isinstance(c, Candidate)]

    @property
    def first_error(self) -> TTServeError | None:
        """What refuses the family, if something does."""
        errors = (c for c in self.children.values() if isinstance(c, TTServeError))
        return next(errors, None)


MAX_UNWANTED = 1024
"""Families of which nothing is wanted any more that are remembered."""


class Groups:
    """The incomplete families of one stream.

    A family whose children were all aborted is completed by those that are
    still on their way; a frontend that sends none leaves it behind, so only
    some of these are remembered.
    """

    def __init__(self) -> None:
        self._families: dict[int, Family] = {}
        self._unwanted: dict[int, None] = {}

    def add(
        self, group: Group, handle: int, child: Candidate | TTServeError | None
    ) -> Family | None:
        """Add a child; the family when it is complete with it."""
        family = self._families.setdefault(group.group_id, Family(group.count))
        if family.count != group.count:
            child = invalid_field(
                "group.count",
                f"group {group.group_id} has {family.count} children by its first "
                f"child and {group.count} by another",
            )
        self._set(group.group_id, handle, child)
        if not family.complete:
            return None
        self._unwanted.pop(group.group_id, None)
        return self._families.pop(group.group_id)

    def abort(self, group: Group, handle: int) -> None:
        """The frontend no longer wants a child that has arrived."""
        self._set(group.group_id, handle, None)

    def _set(
        self, group_id: int, handle: int, child: Candidate | TTServeError | None
    ) -> None:
        children = self._families[group_id].children
        children[handle] = child
        if any(children.values()):
            self._unwanted.pop(group_id, None)
            return
        self._unwanted[group_id] = None
        if len(self._unwanted) > MAX_UNWANTED:
            oldest = next(iter(self._unwanted))
            del self._unwanted[oldest], self._families[oldest]

"""A call, or an answer, that the model contract does not allow."""

from __future__ import annotations


class ContractBreach(Exception):
    """One line: the rule's place in the contract, the call, what is wrong."""

    def __init__(self, rule: str, call: str, wrong: str) -> None:
        super().__init__(f"contract {rule}: {call}: {wrong}")
        self.rule = rule
        self.call = call


class Judge:
    """Raises breaches of one call."""

    def __init__(self, call: str) -> None:
        self.call = call

    def expect(self, holds: object, rule: str, wrong: str) -> None:
        """Raise ContractBreach unless `holds`."""
        if not holds:
            raise ContractBreach(rule, self.call, wrong)

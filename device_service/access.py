"""Who may call what on the gRPC port.

A token opens one scope; a method belongs to one. A scope without a token of its
own falls back to the next wider one, so a single token protects everything:

    step control -> Inspector -> Device -> nothing is asked for

The token of step control also opens the Inspector: to step without looking is
of no use. Reflection says what is public anyway and takes any token. Only
`grpc.health.v1.Health/Check` asks for none, because probes cannot send one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ttserve.errors import Reason, TTServeError
from ttserve.tokens import Tokens, bearer


class Scope(enum.Enum):
    """What a token opens; the values are the words of messages."""

    OPEN = "nothing"
    ANY = "anything"
    DEVICE = "the Device service"
    INSPECTOR = "the Inspector"
    STEP_CONTROL = "step control"


_SERVICES = {
    "ttserve.v1.Inspector": Scope.INSPECTOR,
    # Peers, their addresses and what they transfer.
    "grpc.channelz.v1.Channelz": Scope.INSPECTOR,
    "grpc.reflection.v1.ServerReflection": Scope.ANY,
    "grpc.reflection.v1alpha.ServerReflection": Scope.ANY,
    # A stream stays open for as long as the caller likes; Check does not.
    "grpc.health.v1.Health": Scope.ANY,
}
_METHODS = {
    "/grpc.health.v1.Health/Check": Scope.OPEN,
    "/ttserve.v1.Inspector/Pause": Scope.STEP_CONTROL,
    "/ttserve.v1.Inspector/Step": Scope.STEP_CONTROL,
    "/ttserve.v1.Inspector/Resume": Scope.STEP_CONTROL,
    "/ttserve.v1.Inspector/ResetPrefixCache": Scope.STEP_CONTROL,
}


def scope_of(method: str) -> Scope:
    """The scope of "/package.Service/Method"; Device's, where nothing else is said."""
    service = method.removeprefix("/").partition("/")[0]
    return _METHODS.get(method) or _SERVICES.get(service, Scope.DEVICE)


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens of each scope, and what they mean for a call."""

    device: Tokens = field(default_factory=Tokens)
    inspector: Tokens = field(default_factory=Tokens)
    step_control: Tokens = field(default_factory=Tokens)

    def refusal(self, method: str, header: str) -> TTServeError | None:
        """Why a call with this `authorization` is refused; None if it is not.

        `header` is "" where there was none.
        """
        scope = scope_of(method)
        openers = self._openers(scope)
        if not all(openers):
            return None
        token = bearer(header)
        if any([tokens.accept(token) for tokens in openers]):
            return None
        if any([tokens.accept(token) for tokens in self._all()]):
            return TTServeError(
                Reason.PERMISSION_DENIED,
                f"this token does not open {scope.value}",
                metadata={"scope": scope.name},
            )
        return TTServeError(
            Reason.UNAUTHENTICATED,
            "the device service does not know this token"
            if header
            else "the device service wants a token: authorization: Bearer TOKEN",
        )

    def _openers(self, scope: Scope) -> list[Tokens]:
        """Any of these opens the scope; one that is empty stands for no token."""
        inspector = self.inspector or self.device
        match scope:
            case Scope.OPEN:
                return [Tokens()]
            case Scope.ANY:
                return self._all() or [Tokens()]
            case Scope.DEVICE:
                return [self.device]
            case Scope.INSPECTOR:
                return [inspector, *self._given(self.step_control)]
            case Scope.STEP_CONTROL:
                return [self.step_control or inspector]

    def _all(self) -> list[Tokens]:
        return self._given(self.device, self.inspector, self.step_control)

    @staticmethod
    def _given(*tokens: Tokens) -> list[Tokens]:
        return [each for each in tokens if each]

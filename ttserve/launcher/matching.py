"""What frontends have to show, taken from what the device service is told to ask.

Tokens in the environment need nothing: both parts inherit it.
"""

from __future__ import annotations

from collections.abc import Sequence

_COUNTERPARTS = {
    "--grpc-token-file": "--device-token-file",
    "--inspector-token-file": "--device-inspector-token-file",
    # A certificate that signs itself, as one made for one machine does. Another
    # one needs its authority, which only the operator knows.
    "--grpc-tls-cert": "--device-tls-ca",
}


def matching_flags(
    device_flags: Sequence[str], frontend_flags: Sequence[str]
) -> Sequence[str]:
    """The flags that make a frontend fit the device service, unless they are given."""
    asked = _values(device_flags)
    given = _values(frontend_flags)
    return [
        word
        for flag, counterpart in _COUNTERPARTS.items()
        if flag in asked and counterpart not in given
        for word in (counterpart, asked[flag])
    ]


def _values(words: Sequence[str]) -> dict[str, str]:
    """Each flag and the first of its values, "" if it has none."""
    found = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            following = words[index + 1 : index + 2]
            found[name.replace("_", "-")] = value if equals else "".join(following)
    return found

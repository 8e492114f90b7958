"""Which headers of a delivery are kept, and how: lower case, joined, secrets masked."""

import re
from collections.abc import Collection, Mapping

from reconciler.receiver.signature import Headers

MASK = "***"

_SECRET = re.compile(
    r"(^|-)(authorization|cookie|signature(-\d+)?|token|secret|password|api-?key)$", re.ASCII
)


def joined(headers: Headers) -> dict[str, str]:
    """Return values by lower-case name, the lines of one name joined by commas (RFC 9110, 5.3)."""
    kept: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1")
        kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept


def masked(
    headers: Mapping[str, str], *, names: Collection[str], secrets: Collection[str]
) -> dict[str, str]:
    """
    Return *headers* as they may be stored and shown.

    Masked are the headers called *names*, those whose name says that they carry a secret,
    and every value that holds one of the sender's own *secrets*.
    """

    def tells(name: str, value: str) -> bool:
        if name in names or _SECRET.search(name):
            return True
        return any(secret in value for secret in secrets)

    return {name: MASK if tells(name, value) else value for name, value in headers.items()}

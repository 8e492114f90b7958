"""Which headers of a delivery are kept, and how: lower case, joined, secrets masked."""

import re
from collections.abc import Collection, Mapping

from reconciler.receiver.signature import Headers

MASK = "***"
SECRET_MIN = 12  #: characters from which on a secret is looked for inside values

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
    headers: Mapping[str, str],
    *,
    always: Collection[str],
    never: Collection[str],
    secrets: Collection[str],
) -> dict[str, str]:
    """
    Return *headers* as they may be stored and shown.

    Masked are the headers called as in *always*, and, but for those in *never*, the ones whose
    name says that they carry a secret and the ones that carry one of the sender's *secrets*.
    """

    def tells(name: str, value: str) -> bool:
        if name in always or name in never:
            return name in always
        return bool(_SECRET.search(name)) or any(_holds(value, secret) for secret in secrets)

    return {name: MASK if tells(name, value) else value for name, value in headers.items()}


def _holds(value: str, secret: str) -> bool:
    """Tell whether *value* gives *secret* away; a short one may be part of a word by chance."""
    return secret in value if len(secret) >= SECRET_MIN else secret == value

"""Places on the network as they are configured: listeners, URLs, address ranges."""

import ipaddress
import re
from urllib.parse import parse_qs, urlsplit

PASSWORDS = frozenset({"password", "sslpassword"})


def is_loopback(address: str) -> bool:
    """
    Tell whether a `host:port` can be reached from this machine only.

    >>> is_loopback("127.0.0.1:3001"), is_loopback("[::1]:0"), is_loopback("0.0.0.0:3001")
    (True, True, False)
    """
    host = address.rpartition(":")[0].strip("[]").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_web_url(url: str, *, base: bool = True) -> str | None:
    """What is wrong with an `http://` or `https://` address, if anything; a *base* has no query."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return 'not a URL: write it like "https://api.example.com"'
    if parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"\s", url):
        return 'not a web address: write it like "https://api.example.com"'
    if parts.username is not None or parts.password is not None:
        return "credentials do not belong in a URL: use bearer or headers, by reference"
    if base and (parts.query or parts.fragment):
        return "a base URL ends with its path: no ? and no #"
    return None


def refuse_database_url(url: str) -> str | None:
    """What is wrong with a PostgreSQL URL, if anything."""
    wanted = 'like "postgresql://app@db.example/app" or "postgresql:///app?host=/run/postgresql"'
    try:
        parts = urlsplit(url)
        password, query = parts.password, parse_qs(parts.query)
    except ValueError:
        return f"not a URL: write it {wanted}"
    if parts.scheme not in {"postgresql", "postgres", "postgresql+psycopg"}:
        return f"not a PostgreSQL URL: write it {wanted}"
    if password is not None or PASSWORDS & query.keys():
        return (
            "a password does not belong in the URL, where it would stand in the open:"
            ' use password = "env:NAME", PGPASSFILE or peer authentication'
        )
    return None


def refuse_range(text: str) -> str | None:
    """What is wrong with an address range, if anything."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return 'not a range of addresses: write it like "127.0.0.0/8" or "fd00::/8"'
    return None

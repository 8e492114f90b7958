"""Which addresses a listing may lead us to: those on its own origin."""

from urllib.parse import urljoin, urlsplit

from reconciler.polling.errors import PageBrokenError

PORTS = {"http": 80, "https": 443}


def same_origin(base: str, target: str) -> str:
    """Resolve *target* against *base*; raises PageBrokenError where it leaves the origin."""
    try:
        url = urljoin(base, target)
        if origin(url) == origin(base) and not urlsplit(url).username:
            return url
    except ValueError as error:
        raise PageBrokenError(f"the next page is no URL: {error}") from error
    raise PageBrokenError("the next page is on another origin; it is not followed")


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port (RFC 6454)."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme)

"""From the settings to the egress guard: what may be reached, and where we listen ourselves."""

import ipaddress
from collections.abc import Sequence

from outbox.egress import Egress, Listener, read_networks
from reconciler.settings.addresses import refuse_range
from reconciler.settings.models import Settings


def egress_of(allow_private: Sequence[str], listeners: tuple[Listener, ...] = ()) -> Egress:
    """What one client may reach; a range that is none has been told with the settings."""
    ranges = [text for text in allow_private if refuse_range(text) is None]
    return Egress(allowed=read_networks(ranges), listeners=listeners)


def listeners_of(settings: Settings) -> tuple[Listener, ...]:
    """Our own listeners; a port that is not chosen yet (0) cannot be named by anybody."""
    return tuple(
        listener
        for address in (settings.server.listen, settings.server.admin_listen)
        for listener in _listener(address)
        if listener.port
    )


def _listener(address: str) -> list[Listener]:
    host, _, port = address.rpartition(":")
    names = ["127.0.0.1", "::1"] if host.lower() == "localhost" else [host.strip("[]")]
    try:
        return [Listener(host=ipaddress.ip_address(name), port=int(port)) for name in names]
    except ValueError:
        return []  # a name, and what it means is the resolver's to say

"""Where a call may connect to: judged by the address connected to, never by how it was spelt."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What `ipaddress.is_global` lets pass, in some Python or in all: tunnels and translations whose
# addresses carry another one inside, and what has been withdrawn or is for documentation only.
NOT_PUBLIC: dict[str, Network] = {
    "a translated address (NAT64)": ipaddress.ip_network("64:ff9b::/96"),  # RFC 6052
    "a translated address (local NAT64)": ipaddress.ip_network("64:ff9b:1::/48"),  # RFC 8215
    "a tunnel (Teredo)": ipaddress.ip_network("2001::/32"),  # RFC 4380
    "a tunnel (6to4)": ipaddress.ip_network("2002::/16"),  # RFC 3056
    "a tunnel (6to4 relay)": ipaddress.ip_network("192.88.99.0/24"),  # RFC 7526
    "site-local": ipaddress.ip_network("fec0::/10"),  # RFC 3879
    "for documentation": ipaddress.ip_network("3fff::/20"),  # RFC 9637
    "for protocols, not hosts": ipaddress.ip_network("192.0.0.0/24"),  # RFC 6890
    "shared by a carrier (CGNAT)": ipaddress.ip_network("100.64.0.0/10"),  # RFC 6598
}
OURS = "it is where we listen ourselves"
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # RFC 4291, all of IPv6 that is given out


def read_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Address ranges as they are configured; ValueError for what is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def chosen(answers: Sequence[str], port: int, egress: "Egress") -> list[str]:
    """
    The addresses to connect to, in the order of the resolver's *answers*.

    Raises BlockedError if there is one among them that may not be reached: a name that means
    a public and a private host at once is not to be trusted with either.
    """
    addresses = list(dict.fromkeys(answers))
    for text in addresses:
        if (why := refusal(text, port, egress)) is not None:
            raise BlockedError(text, why)
    return addresses


def refusal(text: str, port: int, egress: "Egress") -> str | None:
    """Why the address *text* may not be connected to, or None where it may."""
    try:
        address = unwrapped(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return "not an address"
    if any(port == own.port and own.covers(address) for own in egress.listeners):
        return OURS
    if any(address in network for network in egress.allowed):
        return None
    why = kind_of(address)
    return why and f"{why} (allow_private does not name it)"


def kind_of(address: Address) -> str | None:
    """What keeps *address* from being a public host, or None for one that is."""
    for name, network in NOT_PUBLIC.items():
        if address in network:
            return name
    kinds = {
        "loopback: this machine": address.is_loopback,
        "link-local: metadata services live there": address.is_link_local,
        "multicast": address.is_multicast,
        "reserved": address.is_unspecified or address.is_reserved,
        "private": not address.is_global
        or (address.version == 6 and address not in GLOBAL_UNICAST),
    }
    return next((name for name, true in kinds.items() if true), None)


def unwrapped(address: Address) -> Address:
    """The IPv4 address that is really connected to where an IPv6 one is only its envelope."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One of our own listeners: nothing of ours calls it."""

    host: Address | None  #: None: every address of this machine
    port: int

    def covers(self, address: Address) -> bool:
        """Whether a connection to *address*, at the same port, could end at this listener."""
        if self.host is None or self.host.is_unspecified:
            return address.is_loopback or address.is_unspecified
        # 0.0.0.0 and :: lead to this machine's loopback where somebody connects to them
        return address == self.host or (address.is_unspecified and self.host.is_loopback)


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """Where one client may connect to: public hosts, and what is named here."""

    allowed: tuple[Network, ...] = ()  #: ranges that may be reached though they are not public
    listeners: tuple[Listener, ...] = ()  #: our own, never to be reached


PUBLIC = Egress()


class BlockedError(Exception):
    """
    A connection that was not made, because of where it would have led.

    A matter of configuration (`allow_private`), or of a name that points elsewhere now.
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"{address} may not be reached: {why}")
        self.address = address

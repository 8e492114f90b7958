"""Talking to the service manager: sd_notify(3), without a library and without effect elsewhere."""

import os
import socket


def notify(*facts: str) -> bool:
    """
    Tell systemd *facts* such as `READY=1`; False where nobody listens.

    The protocol: sd_notify(3), a datagram to $NOTIFY_SOCKET; a leading `@` names an
    abstract socket.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto("\n".join(facts).encode(), target)
        except OSError:
            return False
    return True

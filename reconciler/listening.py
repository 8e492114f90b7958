"""Where we listen: on sockets that the service manager passes, or on addresses that we bind."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import structlog

from reconciler.errors import BusyError, ConfigError, Problem, ReconcilerError
from reconciler.settings import Loaded
from reconciler.settings.addresses import is_loopback

log = structlog.get_logger()

BACKLOG = 1024  #: connections that may wait to be accepted
FIRST_PASSED = 3  #: SD_LISTEN_FDS_START of sd_listen_fds(3)
PURPOSES = {"webhooks": "listen", "admin": "admin_listen"}  #: what for, and the setting otherwise
FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The sockets of one purpose."""

    sockets: Sequence[socket.socket]
    passed: bool = False
    """Somebody else holds them too: what we do not accept, our successor will."""

    @property
    def url(self) -> str:
        """Where the first of them can be reached from this host."""
        return url_of(self.sockets[0])

    def close(self) -> None:
        """Let go of them. A passed one lives on: it is neither shut down nor unlinked."""
        for one in self.sockets:
            one.close()


@contextlib.contextmanager
def opened(
    loaded: Loaded, passed: Mapping[str, Listeners], *, receives: bool
) -> Iterator[tuple[Listeners | None, Listeners]]:
    """
    The sockets for webhooks (None unless this process *receives*) and for operators.

    What was not *passed* is bound as `[server]` says. Raises ConfigError, BusyError or
    ReconcilerError where that is impossible.
    """
    with contextlib.ExitStack() as held:
        for listeners in passed.values():
            held.callback(listeners.close)
        if (admin := passed.get("admin")) is not None:
            _require_token(admin, loaded)
        if "webhooks" in passed and not receives:
            log.warning("listening.unused", name="webhooks", reason="our roles do not receive")

        found: dict[str, Listeners] = {}
        for purpose in PURPOSES if receives else ["admin"]:
            found[purpose] = passed.get(purpose) or _bound(purpose, loaded)
            held.callback(found[purpose].close)
        yield found.get("webhooks"), found["admin"]


def taken(environ: MutableMapping[str, str], *, first: int = FIRST_PASSED) -> dict[str, Listeners]:
    """
    Take the sockets that the service manager passed to us, by purpose; no child gets them.

    The protocol: sd_listen_fds(3). Variables that are meant for another process are removed
    all the same. Raises ConfigError where what was passed is not what we can listen on.
    """
    told = {name: environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    environ.pop("LISTEN_PIDFDID", None)
    if told["LISTEN_PID"] != str(os.getpid()) or not told["LISTEN_FDS"]:
        return {}

    count = _count(told["LISTEN_FDS"])
    names = told["LISTEN_FDNAMES"].split(":") if told["LISTEN_FDNAMES"] else ["unknown"] * count
    if len(names) != count:
        raise ConfigError(f"LISTEN_FDNAMES names {len(names)} sockets, LISTEN_FDS passes {count}")

    found: dict[str, list[socket.socket]] = {}
    with contextlib.ExitStack() as adopted:
        for number, purpose in enumerate(purposes_of(names)):
            listener = adopted.enter_context(_adopted(first + number, names[number]))
            found.setdefault(purpose, []).append(listener)
            log.info("listening.passed", purpose=purpose, url=url_of(listener))
        adopted.pop_all()
    return {purpose: Listeners(sockets=sockets, passed=True) for purpose, sockets in found.items()}


def purposes_of(names: Sequence[str]) -> list[str]:
    """
    What each socket is for: what its name says, else the first purpose that none is named for.

    systemd calls a socket like its unit unless FileDescriptorName= says otherwise.

    >>> purposes_of(["admin", "webhooks", "webhooks"]), purposes_of(["unknown", "unknown"])
    (['admin', 'webhooks', 'webhooks'], ['webhooks', 'admin'])
    >>> purposes_of(["reconciler.socket"]), purposes_of(["webhooks", "other.socket"])
    (['webhooks'], ['webhooks', 'admin'])
    """
    left = [purpose for purpose in PURPOSES if purpose not in names]
    found = []
    for name in names:
        if name not in PURPOSES and not left:
            raise ConfigError(
                f"a passed socket named {name!r} is one too many",
                hint="name each in its socket unit: FileDescriptorName=webhooks or admin",
            )
        found.append(name if name in PURPOSES else left.pop(0))
    return found


def listen_on(address: str) -> Listeners:
    """
    Bind one *address*, `host:port`.

    Raises OSError or ValueError where that is impossible.
    """
    return Listeners(sockets=[bind(address)])


def bind(address: str) -> socket.socket:
    """
    Return a socket that listens on *address*, `host:port` or `[host]:port`.

    Raises OSError where that is impossible.
    """
    written, _, port = address.rpartition(":")
    host = written.removeprefix("[").removesuffix("]")
    family, _, _, _, place = socket.getaddrinfo(
        host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # The protocol by name: only then does asyncio switch off Nagle's algorithm on what is accepted,
    # which makes the second part of an answer wait for the client's delayed ACK, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """
    Return where *listener* can be reached from this host.

    >>> with bind("127.0.0.1:0") as listener:
    ...     url_of(listener).startswith("http://127.0.0.1:")
    True
    """
    name = listener.getsockname()
    if not isinstance(name, tuple):
        return f"http+unix://{quote(name, safe='')}"
    host, port = str(name[0]), int(name[1])
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where, not what
    return f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"


def _bound(purpose: str, loaded: Loaded) -> Listeners:
    """
    An address that another process holds, or that this host does not have yet, may be free the
    next time: only what no restart can mend is a matter of configuration.
    """
    key = PURPOSES[purpose]
    address = getattr(loaded.settings.server, key)
    try:
        return listen_on(address)
    except (OSError, ValueError) as error:
        told = f"server.{key} = {address!r} cannot be listened on: {error}"
        match getattr(error, "errno", None):
            case errno.EADDRINUSE:
                raise BusyError(told) from error
            case errno.EADDRNOTAVAIL:
                raise ReconcilerError(told) from error
            case _:
                raise ConfigError(told) from error


def _count(told: str) -> int:
    if not (told.isascii() and told.isdigit() and 0 < int(told) <= os.sysconf("SC_OPEN_MAX")):
        raise ConfigError(f"LISTEN_FDS is {told!r}, not a number of sockets")
    return int(told)


def _adopted(descriptor: int, name: str) -> socket.socket:
    """The socket that was passed as *descriptor*, checked, and closed on exec."""
    told = f"the passed socket {name!r} (descriptor {descriptor})"
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigError(f"{told} is not a socket: {error.strerror}") from error
    if listener.family not in FAMILIES or listener.type != socket.SOCK_STREAM:
        listener.close()
        raise ConfigError(f"{told} is not a stream socket: the unit must say ListenStream=")
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise ConfigError(f"{told} does not listen: the unit must say Accept=no")
    listener.setblocking(False)
    return listener


def _require_token(admin: Listeners, loaded: Loaded) -> None:
    """What holds for `admin_listen` holds for a passed socket: no strangers without a token."""
    for listener in admin.sockets:
        if listener.family == socket.AF_UNIX or loaded.settings.server.admin_token is not None:
            continue
        host, port = listener.getsockname()[:2]
        if not is_loopback(f"[{host}]:{port}"):
            problem = Problem(
                key="server.admin_token",
                message=f"needed: the passed admin socket {url_of(listener)} is not on loopback",
            )
            raise ConfigError(problems=[problem])

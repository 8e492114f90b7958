"""Everything that can be configured: its type, default, limits and meaning."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from reconciler.settings.destinations import (
    AnyDestination,
    ApplySettings,
    DeliveredSettings,
    DestinationSettings,
    EffectSettings,
    HttpDestinationSettings,
    LookUpSettings,
    SmtpDestinationSettings,
)
from reconciler.settings.resources import (
    ApiSettings,
    FieldSpec,
    GetSettings,
    ListSettings,
    PaginationSettings,
    Rate,
    ResourceSettings,
    SinceSettings,
    TimeSpec,
    VersionSpec,
)
from reconciler.settings.senders import (
    AlsoReadSettings,
    EventSettings,
    HandshakeSettings,
    SenderSettings,
    SignatureSettings,
)
from reconciler.settings.values import (
    Duration,
    Expr,
    Globs,
    Int,
    Moment,
    Name,
    SearchPath,
    SecretRef,
    Section,
    Size,
    Spelled,
    Text,
    matching,
    parse_duration,
    parse_size,
)

__all__ = [
    "AlsoReadSettings",
    "AnyDestination",
    "ApiSettings",
    "ApplySettings",
    "DatabaseSettings",
    "DeliveredSettings",
    "DestinationSettings",
    "Duration",
    "EffectSettings",
    "EventSettings",
    "Expr",
    "FieldSpec",
    "GetSettings",
    "Globs",
    "HandshakeSettings",
    "HttpDestinationSettings",
    "ListSettings",
    "LookUpSettings",
    "Name",
    "PaginationSettings",
    "PollingSettings",
    "ReceiverSettings",
    "RelaySettings",
    "ResourceSettings",
    "RetentionSettings",
    "SecretRef",
    "Section",
    "SenderSettings",
    "ServerSettings",
    "Settings",
    "SignatureSettings",
    "SinceSettings",
    "Size",
    "SmtpDestinationSettings",
    "Text",
    "TimeSpec",
    "VersionSpec",
    "parse_duration",
    "parse_size",
]

ADDRESS = r"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z.-]{1,253}):[0-9]{1,5}"
ADDRESS_SENTENCE = 'not an address: host and port, like "127.0.0.1:3000" or "[::1]:0"'
MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
MODULE_SENTENCE = 'not a module: a dotted Python name, like "shop.handlers"'


def listening_address(value: str) -> str:
    """Refuse ports that do not exist."""
    if int(value.rpartition(":")[2]) > 65535:
        raise ValueError("no such port: 0 to 65535")
    return value


Address = Annotated[
    str,
    matching(ADDRESS, ADDRESS_SENTENCE),
    AfterValidator(listening_address),
    Spelled("host:port"),
]
Module = Annotated[str, matching(MODULE, MODULE_SENTENCE), Spelled("module")]


class DatabaseSettings(Section):
    url: str | None = None
    """Where the database is, as a PostgreSQL URL; absent: a private PostgreSQL of our own."""
    password: SecretRef | None = None
    """The password, by reference; PGPASSFILE and peer authentication need none."""
    schema_: Name = Field(default="reconciler", alias="schema")
    """The PostgreSQL schema that holds our tables."""
    embedded: Literal["auto", "never"] = "auto"
    """Whether a private PostgreSQL is started when `url` is absent."""
    search_path: SearchPath | None = None
    """The search path of your own statements (`apply` SQL and handlers)."""
    pool_size: Int = Field(default=10, ge=2, le=200)
    """How many server connections one process may hold."""


class ServerSettings(Section):
    listen: Address = "127.0.0.1:3000"
    """Where webhooks are received, as `host:port`; port 0 picks a free one."""
    admin_listen: Address = "127.0.0.1:3001"
    """Where operators look: /livez, /readyz, /metrics."""
    admin_token: SecretRef | None = None
    """Needed as soon as the admin listener is not on loopback; nothing there asks for it yet."""
    state_directory: Path | None = None
    """Where the private PostgreSQL and its lock live; relative to the working directory."""
    connections: Int = Field(default=2100, ge=1, le=100_000)
    """How many connections senders may hold open; further ones are answered 503 and closed."""
    drain: Duration = timedelta(seconds=25)
    """How long a stop may take before what is left is dropped (and comes back by its lease)."""


class ReceiverSettings(Section):
    batch_max: Int = Field(default=200, ge=1, le=1000)
    """How many waiting events are committed together at the most; one delivery is never split."""
    waiting_max: Int = Field(default=2000, ge=1, le=100_000)
    """How many deliveries may wait; beyond it the answer is 503 with Retry-After."""
    body_timeout: Moment = timedelta(seconds=10)
    """How long a body may take to arrive; beyond it 408."""


class RelaySettings(Section):
    poll: Duration = Field(default=timedelta(milliseconds=250), ge=timedelta(milliseconds=10))
    """How often the outbox is looked at when nothing hints that there is work."""
    lease: Moment = timedelta(seconds=60)
    """How long an entry stays ours once taken; at least any destination's timeout plus 2s."""
    backoff_base: Moment = timedelta(seconds=2)
    """The first retry waits up to this long; each further one up to twice as long."""
    backoff_cap: Moment = timedelta(hours=1)
    """No retry waits longer than this."""
    redrive_rate: Rate = "100/s"
    """How fast a bulk redrive makes entries due, unless its command says otherwise."""


class PollingSettings(Section):
    lease: Moment = timedelta(seconds=60)
    """How long a scan stays ours between two pages."""
    deadline: Moment = timedelta(hours=1)
    """How long one run may take; what it has done by then is kept."""
    poll: Duration = Field(default=timedelta(seconds=1), ge=timedelta(milliseconds=10))
    """How often due scans and requested reads are looked for."""


class RetentionSettings(Section):
    claims: Moment = timedelta(days=90)
    """How long an event id is remembered; never below twice the sender's retry window."""
    bodies: Duration = timedelta(days=7)
    """How long the exact bytes of deliveries are kept."""
    entries: Moment | None = None
    """How long an outbox entry that is over is kept; absent: as long as its claim."""
    quarantine: Moment = timedelta(days=30)
    """How long closed copies in quarantine are kept, from when they were seen last."""
    undecided: Moment | None = None
    """After how long open copies in quarantine go too; absent: they wait for a person."""
    actions: Moment = timedelta(days=365)
    """How long it is remembered what people have done."""


class Settings(Section):
    """The whole configuration."""

    handlers: tuple[Module, ...] = ()
    """Python modules with @handler functions."""
    database: DatabaseSettings = DatabaseSettings()
    """Where the state lives."""
    server: ServerSettings = ServerSettings()
    """Where we listen."""
    receiver: ReceiverSettings = ReceiverSettings()
    """How webhooks are taken in."""
    relay: RelaySettings = RelaySettings()
    """How the outbox is emptied."""
    polling: PollingSettings = PollingSettings()
    """How senders are read."""
    retention: RetentionSettings = RetentionSettings()
    """How long things are remembered."""
    senders: dict[Name, SenderSettings] = {}
    """The systems that emit webhooks."""
    destinations: dict[Name, AnyDestination] = {}
    """Where effects go."""
    effects: dict[Name, EffectSettings] = {}
    """The external calls."""

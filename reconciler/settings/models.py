"""Everything that can be configured: its type, default, limits and meaning."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Expr = str  #: a Jinja2 expression, compiled where it is used
Text = str  #: a text that may hold {{ expressions }}

UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def parse_duration(value: object) -> object:
    """
    Read `200ms`, `90s`, `5m`, `24h` or `7d`.

    >>> parse_duration("24h")
    datetime.timedelta(days=1)
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", value)):
        return timedelta(**{UNITS[match[2]]: int(match[1])})
    raise ValueError('not a duration: a number and a unit, like "200ms", "90s", "5m", "24h", "7d"')


def parse_size(value: object) -> object:
    """
    Read `512B`, `64KiB`, `1MiB`.

    >>> parse_size("1MiB")
    1048576
    """
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,9})(B|KiB|MiB|GiB)", value)):
        return int(match[1]) * SIZES[match[2]]
    raise ValueError('not a size: a number and a unit, like "512B", "64KiB", "1MiB"')


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
SecretRef = str  #: "env:NAME", "file:/path" or "credential:name"; resolved by settings.secrets
Globs = tuple[str, ...]


class Section(BaseModel):
    """A part of the settings: unknown keys are mistakes, values do not change."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=False,
        populate_by_name=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )


class DatabaseSettings(Section):
    url: str | None = None
    """Where the database is, as a PostgreSQL URL; absent: a private PostgreSQL of our own."""
    password: SecretRef | None = None
    """The password, by reference; PGPASSFILE and peer authentication need none."""
    schema_: Name = Field(default="reconciler", alias="schema")
    """The PostgreSQL schema that holds our tables."""
    embedded: Literal["auto", "never"] = "auto"
    """Whether a private PostgreSQL is started when `url` is absent."""
    search_path: str | None = None
    """The search path of your own statements (`apply` SQL and handlers)."""
    pool_size: int = Field(default=10, ge=2, le=200)
    """How many server connections one process may hold."""


class ServerSettings(Section):
    listen: str = "127.0.0.1:3000"
    """Where webhooks are received, as `host:port`; port 0 picks a free one."""
    admin_listen: str = "127.0.0.1:3001"
    """Where operators look: /livez, /readyz, /metrics."""
    admin_token: SecretRef | None = None
    """The bearer token of the admin listener; needed as soon as it is not on loopback."""
    state_directory: Path | None = None
    """Where the private PostgreSQL and its lock live."""
    drain: Duration = timedelta(seconds=25)
    """How long a stop may take before what is left is dropped (and comes back by its lease)."""


class ReceiverSettings(Section):
    batch_max: int = Field(default=200, ge=1, le=1000)
    """How many waiting deliveries are committed together at the most."""
    waiting_max: int = Field(default=2000, ge=1)
    """How many deliveries may wait; beyond it the answer is 503 with Retry-After."""
    body_timeout: Duration = timedelta(seconds=10)
    """How long a body may take to arrive; beyond it 408."""


class RelaySettings(Section):
    poll: Duration = timedelta(milliseconds=250)
    """How often the outbox is looked at when nothing hints that there is work."""
    lease: Duration = timedelta(seconds=60)
    """How long an entry stays ours once taken; longer than any destination's timeout plus 2s."""
    backoff_base: Duration = timedelta(seconds=2)
    """The first retry waits up to this long; each further one up to twice as long."""
    backoff_cap: Duration = timedelta(hours=1)
    """No retry waits longer than this."""


class PollingSettings(Section):
    lease: Duration = timedelta(seconds=60)
    """How long a scan stays ours between two pages."""
    deadline: Duration = timedelta(hours=1)
    """How long one run may take; what it has done by then is kept."""
    poll: Duration = timedelta(seconds=1)
    """How often due scans and requested reads are looked for."""


class RetentionSettings(Section):
    claims: Duration = timedelta(days=90)
    """How long an event id is remembered; never below twice the sender's retry window."""
    bodies: Duration = timedelta(days=7)
    """How long the exact bytes of deliveries are kept."""


class SignatureSettings(Section):
    scheme: Literal["hmac-sha256", "hmac-sha1", "hmac-sha512"] = "hmac-sha256"
    """How deliveries are signed."""
    header: str = "X-Signature"
    """The header that carries the signature; several lines are several candidates."""
    timestamp_header: str | None = None
    """The header that carries the time of signing, in unix seconds."""
    id_header: str | None = None
    """The header that carries the delivery's id, where the signed text needs it."""
    signed: Text = "{{ body }}"
    """What is signed: `body`, `timestamp`, `id`, `url` and `method`, joined as bytes."""
    tolerance: Duration = timedelta(minutes=5)
    """How far the time of signing may lie from now, to both sides."""
    encoding: Literal["hex", "base64"] = "hex"
    """How the signature is written."""
    key: Literal["utf8", "base64", "hex"] = "utf8"
    """How the secret becomes a key."""
    key_prefix: str = ""
    """What is cut off the secret before it is decoded (`whsec_`)."""
    prefix: str = ""
    """What stands before the signature in the header (`sha256=`)."""
    item_separator: str | None = None
    """What separates the items of a compound header (`t=..,v1=..`: a comma)."""
    value_separator: str | None = None
    """What separates name and value of an item; the first one counts."""
    timestamp_field: str | None = None
    """The item that is the time of signing."""
    signature_field: str | None = None
    """The items that are signatures; others are passed over."""
    encodings: tuple[Literal["gzip"], ...] = ()
    """Content encodings that are accepted; the signature is over the bytes on the wire."""
    refused_status: Literal[400, 401, 403, 498] = 401
    """What a delivery with a wrong signature is answered."""


class TimeSpec(Section):
    value: Expr
    """Where the time stands."""
    format: Literal["rfc3339", "s", "ms", "us", "ns"] = "rfc3339"
    """How it is written: RFC 3339, or a count since 1970."""
    zone: str | None = None
    """The zone of times written without an offset (`UTC`, `Europe/Berlin`)."""


class VersionSpec(Section):
    value: Expr | None = None
    """Where the version stands; none for `observed`."""
    kind: Literal["integer", "timestamp", "observed"] = "integer"
    """How versions are read and compared."""
    format: Literal["rfc3339", "s", "ms", "us", "ns"] = "rfc3339"
    """How a timestamp is written."""
    zone: str | None = None
    """The zone of timestamps written without an offset."""


class FieldSpec(Section):
    value: Expr
    """Where the field stands in the object."""
    type: Literal["any", "text", "integer", "decimal", "boolean", "timestamp"] = "any"
    """What it is read as, the same on every path."""


class EventSettings(Section):
    id: Expr
    """Where the event's id stands."""
    type: Expr
    """Where the event's type stands."""
    occurred_at: Expr | TimeSpec | None = None
    """When it happened, by the sender's clock."""
    items: Expr | None = None
    """Where the events of a batch stand; absent: a delivery carries one event."""


class HandshakeSettings(Section):
    when: Expr
    """Which deliveries are handshakes, over `body`, `headers`, `query`, `method`."""
    signed: bool = True
    """Whether a handshake must be signed like any delivery."""
    status: int = Field(default=200, ge=200, le=299)
    """What it is answered."""
    content_type: str = "text/plain"
    """The content type of the answer."""
    text: Text = ""
    """The body of the answer, over the same names."""


class ApiSettings(Section):
    base_url: str
    """Where the sender's API is; pages are followed on this origin only."""
    bearer: SecretRef | None = None
    """The bearer token, by reference."""
    headers: dict[str, str] = {}
    """Static headers; a value may be a secret reference."""
    rate: str | None = Field(default=None, pattern=r"^\d{1,6}/(s|m|h)$")
    """How many requests we may make, like `10/s`."""
    timeout: Duration = timedelta(seconds=30)
    """How long one request may take in all."""
    max_response: Size = 32 * 1024**2
    """How large an answer may be, inflated."""
    allow_private: tuple[str, ...] = ()
    """Private address ranges that may be reached."""


class PaginationSettings(Section):
    style: Literal["cursor", "page", "offset", "last_id", "next_url", "link"]
    """How the listing goes on."""
    next: Expr | None = None
    """Where the next cursor or URL stands in the answer."""
    param: str | None = None
    """The query parameter that carries the cursor, page, offset or last id."""
    first: int = 1
    """The number of the first page."""
    more: Expr | None = None
    """Where the answer says whether there is more; true with no way on is a broken page."""
    size_param: str | None = None
    """The query parameter that carries the page size."""
    size: int | None = Field(default=None, ge=1, le=10000)
    """How many items a page holds."""


class SinceSettings(Section):
    param: str
    """The query parameter that asks for what changed since."""
    format: Literal["rfc3339", "s", "ms", "us", "ns"] = "rfc3339"
    """How it is written."""
    lookback: Duration = timedelta(minutes=10)
    """How far each incremental scan reaches back behind the watermark."""


class ListSettings(Section):
    path: str
    """The state-listing endpoint, below the API's `base_url`."""
    items: Expr
    """Where the items stand in the answer."""
    from_: Expr = Field(default="", alias="from")
    """Where the object stands in an item; "" is all of it."""
    key: Expr | None = None
    """The key, where it differs from the resource's."""
    version: Expr | VersionSpec | None = None
    """The version, where it stands elsewhere."""
    changed_at: Expr | TimeSpec | None = None
    """When the item changed, by the sender's clock."""
    created_at: Expr | TimeSpec | None = None
    """When the item was created, by the sender's clock."""
    params: dict[str, str | int | bool] = {}
    """Fixed query parameters."""
    pagination: PaginationSettings | None = None
    """How the listing goes on; absent: it is one page."""
    since: SinceSettings | None = None
    """How to ask for what changed; absent: every scan is full."""
    order: Literal["oldest", "newest", "unknown"] = "unknown"
    """In which order of change the items come."""
    interval: Duration = timedelta(minutes=5)
    """How often it is scanned."""
    full_every: Duration = timedelta(hours=24)
    """How often it is scanned in full."""
    max_absent: int = Field(default=5, ge=0, le=100)
    """Percent of our rows that a full scan may miss before it is taken for an outage."""


class GetSettings(Section):
    path: Text
    """The endpoint of one resource, with `{{ key }}`."""
    from_: Expr = Field(default="", alias="from")
    """Where the object stands in the answer; "" is all of it."""
    key: Expr | None = None
    """The key, where it differs from the resource's."""
    version: Expr | VersionSpec | None = None
    """The version, where it stands elsewhere."""
    absent: Literal["deleted", "unknown"] = "unknown"
    """What 404 and 410 mean."""


class ResourceSettings(Section):
    on: Globs = ()
    """Event types that are about this kind."""
    from_: Expr = Field(default="", alias="from")
    """Where the object that describes the resource stands in the event."""
    key: Expr
    """The key, relative to the object."""
    version: Expr | VersionSpec
    """The version, relative to the object."""
    fields: dict[str, Expr | FieldSpec] = {}
    """What we keep of it; absent: the whole object."""
    thin: bool = False
    """Whether events carry no state, so that each asks for a read."""
    changed_at: Expr | TimeSpec | None = None
    """When it changed, by the sender's clock."""
    created_at: Expr | TimeSpec | None = None
    """When it was created, by the sender's clock."""
    deleted_on: Globs = ()
    """Event types that say it was deleted."""
    created_on: Globs = ()
    """Event types that say it was created."""
    first_seen: Literal["fire", "skip"] | None = None
    """What a change of a resource never seen before does, for a kind without `list`."""
    list: ListSettings | None = None
    """The state-listing endpoint."""
    get: GetSettings | None = None
    """The endpoint of one resource."""


class ApplySettings(Section):
    on: Globs = ()
    """Facts (event types of this sender) that run it."""
    on_change: Globs = ()
    """Kinds of this sender whose changes run it."""
    becomes: Expr | None = None
    """Only when this is true now and was not before."""
    when: Expr | None = None
    """Only when this is true."""
    if_stale: Literal["count", "skip"] | None = None
    """Whether a fact counts that comes after a newer state."""
    sql: str
    """Your statement, with `:names`."""
    params: dict[str, Expr] = {}
    """What the names stand for."""
    expect_rows: int | None = Field(default=None, ge=0)
    """How many rows it should touch; fewer is a warning."""


class AlsoReadSettings(Section):
    on: Globs
    """Event types that mention another resource."""
    kind: Name
    """The kind that is read."""
    key: Expr
    """Its key, over the event."""


class SenderSettings(Section):
    preset: str = "generic"
    """The shipped description of a sender, or a file in `presets/` beside this one."""
    secrets: tuple[SecretRef, ...] = ()
    """What deliveries are signed with; any of them with any listed signature."""
    retry_window: Duration = timedelta(hours=24)
    """How long the sender repeats a delivery, by its documentation."""
    grace: Duration = timedelta(minutes=2)
    """How long a webhook may take before a scan corrects in its place."""
    lag: Duration = timedelta(0)
    """How far the sender's `get` may be behind."""
    max_body: Size = 1024**2
    """How large a delivery may be, inflated."""
    answer_within: Duration = timedelta(seconds=8)
    """How long the sender waits for our answer; past it 503."""
    on_malformed: Literal["quarantine", "refuse"] = "quarantine"
    """What an authentic delivery beyond use gets: 200 and quarantine, or 422."""
    max_failures: int = Field(default=5, ge=1, le=1000)
    """After how many failures of one event it is answered 200 and stays in quarantine."""
    keep_claims: Duration | None = None
    """How long this sender's event ids are remembered; absent: `[retention] claims`."""
    keep_bodies: Duration | None = None
    """How long this sender's bodies are kept; absent: `[retention] bodies`."""
    public_url: str | None = None
    """The URL as the sender knows it, where it is signed."""
    signature: SignatureSettings
    """How deliveries are signed."""
    event: EventSettings
    """Where a delivery says what happened."""
    handshake: tuple[HandshakeSettings, ...] = ()
    """Deliveries that want an answer of their own."""
    api: ApiSettings | None = None
    """The sender's API."""
    resources: dict[Name, ResourceSettings] = {}
    """The kinds of resources that we follow."""
    apply: tuple[ApplySettings, ...] = ()
    """Your own statements, in the same transaction."""
    also_read: tuple[AlsoReadSettings, ...] = ()
    """Reads of other resources that an event mentions."""


class DestinationSettings(Section):
    kind: Literal["http"] = "http"
    """How it is reached."""
    base_url: str
    """Where it is."""
    bearer: SecretRef | None = None
    """The bearer token, by reference; added at send time, never stored."""
    headers: dict[str, str] = {}
    """Static headers; a value may be a secret reference."""
    key_header: str = "Idempotency-Key"
    """The header that carries the idempotency key."""
    key_ttl: Duration = timedelta(hours=24)
    """How long the destination remembers a key."""
    key_margin: Duration | None = None
    """How long before that we stop repeating; absent: the relay's lease plus `timeout`."""
    key_max_length: int = Field(default=255, ge=40, le=255)
    """Longer keys are sent as a hash."""
    key_format: Literal["text", "uuid"] = "text"
    """`uuid`: the key goes out as a UUIDv5 of itself."""
    idempotent: bool = True
    """Whether the destination honours the key."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """How many calls may be under way at once."""
    timeout: Duration = timedelta(seconds=15)
    """How long one call may take in all."""
    max_attempts: int = Field(default=12, ge=1, le=1000)
    """How often an entry is tried."""
    ordered: bool = False
    """Whether entries of one resource are called strictly in order."""
    after_dead: Literal["continue", "hold"] = "continue"
    """Whether a dead entry lets its successors go."""
    conflict: Literal["in_progress", "dead"] = "in_progress"
    """What 409 means."""
    not_done: tuple[int, ...] = ()
    """Statuses that certainly had no effect."""
    success_when: Expr | None = None
    """What success is, over `status`, `headers`, `body`; absent: 2xx."""
    retry_when: Expr | None = None
    """Which failures inside a 2xx are tried again."""
    retry_after_max: Duration = timedelta(hours=1)
    """The longest Retry-After that is respected."""
    allow_private: tuple[str, ...] = ()
    """Private address ranges that may be reached."""


class EffectSettings(Section):
    on: Globs = ()
    """Facts that ask for it, as `sender:type`."""
    on_change: Globs = ()
    """Changes that ask for it, as `sender:kind`."""
    becomes: Expr | None = None
    """Only when this is true now and was not before."""
    when: Expr | None = None
    """Only when this is true."""
    if_stale: Literal["count", "skip"] | None = None
    """Whether a fact counts that comes after a newer state."""
    destination: Name
    """Where it goes."""
    request: Text
    """Method and path, like `POST /v1/charges`."""
    json_: Any = Field(default=None, alias="json")
    """The JSON body; a value that is exactly one {{ expression }} keeps its type."""
    headers: dict[str, Text] = {}
    """Headers of this call, frozen with it."""
    idempotency_key: Text | None = None
    """The key; absent: the event id for a fact, the version for a change."""
    idempotent: bool | None = None
    """Whether this call is idempotent; absent: what the destination says."""
    max_age: Duration | None = None
    """Older causes are recorded as skipped."""


class Settings(Section):
    """The whole configuration."""

    handlers: tuple[str, ...] = ()
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
    destinations: dict[Name, DestinationSettings] = {}
    """Where effects go."""
    effects: dict[Name, EffectSettings] = {}
    """The external calls."""



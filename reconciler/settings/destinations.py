"""What an event may ask for: your own statements, effects, and where effects go."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from reconciler.settings.flow import FlowSettings
from reconciler.settings.values import (
    Bool,
    Duration,
    Expr,
    Filled,
    Globs,
    HeaderName,
    HeaderValue,
    Int,
    JsonValue,
    Moment,
    Name,
    Proxy,
    SecretRef,
    Section,
    Size,
    Spelled,
    Text,
    matching,
    not_blank,
)

Status = Annotated[Int, Field(ge=400, le=599)]
REQUEST_SENTENCE = 'not a request: a method and a path, like "POST /v1/charges"'

Request = Annotated[
    str, matching(r"(GET|POST|PUT|PATCH|DELETE) /.*", REQUEST_SENTENCE), Spelled("template")
]
OnUncertain = Literal["hold", "look_up", "retry"]
MailHost = Annotated[
    str,
    matching(r"[A-Za-z0-9.:_-]{1,253}", 'not a host: a name or an address, like "smtp.example"'),
]
Addresses = Annotated[
    tuple[Text, ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
    Spelled("template, or a list of them"),
]
FIELD = r"[A-Za-z_][\w-]{0,62}(\.[A-Za-z_][\w-]{0,62})*"
FIELD_SENTENCE = 'not a field: names with dots, like "idempotency_key" or "variables.key"'
KeyField = Annotated[str, matching(FIELD, FIELD_SENTENCE), Spelled("field")]
Key = Annotated[str, AfterValidator(not_blank), Spelled("template")]


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
    sql: Filled
    """Your statement, with `:names`."""
    params: dict[Filled, Expr] = {}
    """What the names stand for."""
    expect_rows: Int | None = Field(default=None, ge=0)
    """How many rows it should touch; fewer is a warning."""


class DestinationSettings(FlowSettings):
    """What every kind of destination has; each kind is a model of its own below."""

    kind: str
    """How it is reached."""
    key_ttl: Moment = timedelta(hours=24)
    """How long the destination remembers a key."""
    key_margin: Duration | None = None
    """How long before that we stop repeating; absent: the relay's lease plus `timeout`."""
    key_max_length: Int = Field(default=255, ge=25, le=255)
    """Longer keys are sent as a hash."""
    key_format: Literal["text", "uuid"] = "text"
    """`uuid`: the key goes out as a UUIDv5 of itself."""
    idempotent: Bool
    """Whether the destination honours the key."""
    timeout: Moment = timedelta(seconds=15)
    """How long one call may take in all."""
    max_attempts: Int = Field(default=12, ge=1, le=1000)
    """How often an entry is tried."""
    ordered: Bool = False
    """Whether entries of one resource are called strictly in order."""
    after_dead: Literal["continue", "hold"] = "continue"
    """Whether a dead entry lets its successors go."""
    on_uncertain: OnUncertain = "hold"
    """What becomes of an unknown outcome: `hold` for a person, `look_up`, or `retry` blindly."""
    allow_private: tuple[str, ...] = ()
    """Address ranges that may be reached though they are not public; loopback is private."""


class BasicSettings(Section):
    user: HeaderValue
    """The user, or a secret reference to it; some providers put their key here."""
    password: SecretRef | Literal[""] = ""
    """The password, by reference; empty where the provider wants none."""


class LookUpSettings(Section):
    request: Annotated[
        str,
        matching(r"GET /.*", 'not a look-up: "GET " and a path, which changes nothing there'),
        Spelled("template"),
    ]
    """How to ask, over `idempotency_key`, `key`, `event_id` ... and `request`, the call's JSON."""
    found: Expr
    """When the call has taken effect, over `status`, `headers`, `body`."""
    not_found: Expr | None = None
    """When it has not; absent: it can be found, and is never taken for not made."""
    lag: Duration = timedelta(seconds=30)
    """How long after a call its effect may not be visible there: until then absence is no proof."""
    every: Moment = timedelta(seconds=10)
    """The wait after the first look; each further one is twice as long, up to an hour."""
    looks: Int = Field(default=12, ge=1, le=1000)
    """After so many it stays `uncertain`, for a person."""


class HttpDestinationSettings(DestinationSettings):
    kind: Literal["http"] = "http"
    """How it is reached."""
    idempotent: Bool = True
    """Whether the destination honours the key."""
    profile: str | None = None
    """The shipped description of a provider, or a file in `destinations/` beside this one."""
    base_url: str
    """Where it is."""
    bearer: SecretRef | None = None
    """The bearer token, by reference; added at send time, never stored."""
    basic: BasicSettings | None = None
    """User and password, for HTTP Basic authentication."""
    headers: dict[HeaderName, HeaderValue] = {}
    """Static headers; a value may be a secret reference."""
    query: dict[Filled, HeaderValue] = {}
    """Query parameters of every call; a value may be a secret reference. Never stored."""
    proxy: Proxy | None = None
    """The HTTP proxy to go through, or a reference to it; none comes from the environment."""
    key_header: HeaderName = "Idempotency-Key"
    """The header that carries the idempotency key."""
    key_field: KeyField | None = None
    """The field of the body that carries it instead; inside of others with dots."""
    form_lists: Literal["indexed", "brackets", "repeated"] = "indexed"
    """How lists go into a form or a query: `a[0]=x`, `a[]=x`, or `a=x` once an item."""
    conflict: Literal["in_progress", "done", "dead"] = "in_progress"
    """What 409 means; `done`: an earlier attempt under this key has taken effect."""
    not_done: tuple[Status, ...] = ()
    """Statuses that certainly had no effect."""
    success_when: Expr | None = None
    """What success is, over `status`, `headers`, `body`; absent: 2xx."""
    retry_when: Expr | None = None
    """Which failures inside a 2xx are tried again."""
    done_when: Expr | None = None
    """Which answers say that an earlier attempt has taken effect; absent: as `conflict` says."""
    done_id: Expr | None = None
    """What such an answer calls what is there; kept with the attempt."""
    not_done_when: Expr | None = None
    """Which answers certainly had no effect, whatever their status: tried again."""
    unclear_when: Expr | None = None
    """Which answers leave it open, or say that an earlier attempt is still under way."""
    mismatch_when: Expr | None = None
    """Which answers say that the key was used for another request: never repeated."""
    replayed_when: Expr | None = None
    """How an answer is marked that an earlier attempt got, over `status` and `headers`."""
    retry_after_max: Duration = timedelta(hours=1)
    """The longest Retry-After that is respected."""
    look_up: LookUpSettings | None = None
    """How the destination is asked what became of a call, with `on_uncertain = "look_up"`."""


class SmtpDestinationSettings(DestinationSettings):
    kind: Literal["smtp"]
    """How it is reached."""
    host: MailHost
    """The mail server's name, or its address."""
    port: Int | None = Field(default=None, ge=1, le=65535)
    """Absent: 587, 465 with `tls = "implicit"`, 25 with `tls = "none"`."""
    tls: Literal["starttls", "implicit", "none"] = "starttls"
    """`starttls`: it must be offered (but on loopback); `none`: mails go out readable."""
    user: Filled | None = None
    """Who we are to it; only over an encrypted connection, or on loopback."""
    password: SecretRef | None = None
    """The password, by reference; added at send time, never stored."""
    from_: Filled | None = Field(default=None, alias="from")
    """Who the mails are from, like `Shop <orders@shop.example>`; absent: `reconciler@` its host."""
    reply_to: Filled | None = None
    """Where answers go, if not to `from`."""
    ehlo_name: MailHost | None = None
    """How we introduce ourselves; absent: by this host's name, or else by its address."""
    max_size: Size = 10 * 1024 * 1024
    """The largest message; a larger one stays `unrendered`."""
    idempotent: Bool = False
    """Mail servers perform every mail that they are handed, also one that they have had."""
    timeout: Moment = timedelta(seconds=30)
    """How long one mail may take in all; half of it is left for the answer to its end."""


def port_of(destination: SmtpDestinationSettings) -> int:
    """The port of a mail server, usual where it is not said (RFC 6409, RFC 8314, RFC 5321)."""
    usual = {"starttls": 587, "implicit": 465, "none": 25}
    return usual[destination.tls] if destination.port is None else destination.port


def kind_of(destination: object) -> str:
    """
    Which model judges a table: that of its `kind`, else the usual one, which says what is wrong.

    For a pydantic `Discriminator`: with it, mistakes are told once, and not by every kind.
    """
    kind = destination.get("kind") if isinstance(destination, dict) else None
    if isinstance(destination, DestinationSettings):
        kind = destination.kind
    return kind if isinstance(kind, str) and kind in KINDS else "http"


KINDS = frozenset({"http", "smtp"})
AnyDestination = Annotated[
    Annotated[HttpDestinationSettings, Tag("http")]
    | Annotated[SmtpDestinationSettings, Tag("smtp")],
    Discriminator(kind_of),
]
"""The kinds that can be configured: a union of `Tag`s told apart by `kind_of`."""


class DeliveredSettings(Section):
    sql: Filled
    """Your statement, with `:names`; it runs in the transaction that marks the call delivered."""
    params: dict[Filled, Expr] = {}
    """What the names stand for, over `status`, `headers`, `body` of the answer and the entry."""


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
    request: Request | None = None
    """Method and path, like `POST /v1/charges`; needed where the destination is `http`."""
    json_: JsonValue = Field(default=None, alias="json")
    """The JSON body; a value that is exactly one {{ expression }} keeps its type."""
    form: dict[Filled, JsonValue] | None = None
    """The form body, instead of `json`: tables and lists go into brackets, `a[b]=c`."""
    query: dict[Filled, JsonValue] | None = None
    """The query of this call, frozen with it."""
    headers: dict[HeaderName, Text] = {}
    """Headers of this call, or of this mail, frozen with it."""
    to: Addresses = ()
    """Who gets the mail, where the destination is `smtp`: one address each, or a list's."""
    cc: Addresses = ()
    """Who gets a copy."""
    bcc: Addresses = ()
    """Who gets a copy that no other recipient sees."""
    from_: Text | None = Field(default=None, alias="from")
    """Who this mail is from; absent: what the destination says."""
    reply_to: Addresses = ()
    """Where answers to this mail go; absent: what the destination says."""
    subject: Text | None = None
    """The mail's subject."""
    text: Text | None = None
    """The mail as text."""
    html: Text | None = None
    """The mail as HTML; with `text` too, readers choose."""
    idempotency_key: Key | None = None
    """The key; absent: the event id for a fact, the version for a change."""
    idempotent: Bool | None = None
    """Whether this call is idempotent; absent: what the destination says."""
    on_uncertain: OnUncertain | None = None
    """What becomes of an unknown outcome; absent: what the destination says."""
    look_up: LookUpSettings | None = None
    """How the destination is asked about this effect; absent: as it says itself."""
    delivered: DeliveredSettings | None = None
    """What is written when it is delivered, like the provider's own id."""
    max_age: Duration | None = None
    """Older causes are recorded as skipped."""
    lane: Key | None = None
    """Its calls go one after the other with all of that lane, in the place of `ordered`."""
    after_dead: Literal["continue", "hold"] | None = None
    """Whether a dead one lets its successors go; absent: what the destination says."""
    supersedes: Bool = False
    """Whether a newer one discards an older one of its lane that cannot have arrived yet."""
    expires: Moment | None = None
    """Nothing is sent for causes that are older by then: recorded as skipped, or as uncertain."""

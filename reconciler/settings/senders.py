"""What may be said about a sender: how it signs and what its deliveries say."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from reconciler.settings.destinations import ApplySettings
from reconciler.settings.resources import ApiSettings, Moments, ResourceSettings
from reconciler.settings.values import (
    Bool,
    Duration,
    Expr,
    Globs,
    HeaderName,
    Int,
    Moment,
    Name,
    SecretRef,
    Section,
    Size,
    Spelled,
    Text,
    Whole,
    matching,
    whole_number,
)

CONTENT_TYPE = 'not a content type: like "text/plain" or "application/json; charset=utf-8"'
ContentType = Annotated[
    str, matching(r"[a-z0-9.+-]+/[a-z0-9.+-]+(; ?[!-~]+)*", CONTENT_TYPE), Spelled("content type")
]


class SignatureSettings(Section):
    scheme: Literal["hmac-sha256", "hmac-sha1", "hmac-sha512"] = "hmac-sha256"
    """How deliveries are signed."""
    header: HeaderName = "X-Signature"
    """The header that carries the signature; several lines are several candidates."""
    timestamp_header: HeaderName | None = None
    """The header that carries the time of signing, in unix seconds."""
    id_header: HeaderName | None = None
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
    item_separator: str | None = Field(default=None, min_length=1)
    """What separates the items of a compound header (`t=..,v1=..`: a comma)."""
    value_separator: str | None = Field(default=None, min_length=1)
    """What separates name and value of an item; the first one counts."""
    timestamp_field: str | None = Field(default=None, min_length=1)
    """The item that is the time of signing."""
    signature_field: str | None = Field(default=None, min_length=1)
    """The items that are signatures; others are passed over."""
    encodings: tuple[Literal["gzip"], ...] = ()
    """Content encodings that are accepted; the signature is over the bytes on the wire."""
    refused_status: Annotated[Literal[400, 401, 403, 498], BeforeValidator(whole_number)] = 401
    """What a delivery with a wrong signature is answered."""


class EventSettings(Section):
    id: Expr
    """Where the event's id stands."""
    type: Expr
    """Where the event's type stands."""
    occurred_at: Moments | None = None
    """When it happened, by the sender's clock."""
    items: Whole | None = None
    """Where the events of a batch stand; absent: a delivery carries one event."""


class HandshakeSettings(Section):
    when: Expr
    """Which deliveries are handshakes, over `body`, `headers`, `query`, `method`."""
    signed: Bool = True
    """Whether a handshake must be signed like any delivery."""
    status: Int = Field(default=200, ge=200, le=299)
    """What it is answered."""
    content_type: ContentType = "text/plain"
    """The content type of the answer."""
    text: Text = ""
    """The body of the answer, over the same names."""


class AlsoReadSettings(Section):
    on: Globs = Field(min_length=1)
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
    answer_within: Moment = timedelta(seconds=8)
    """How long the sender waits for our answer; past it 503."""
    on_malformed: Literal["quarantine", "refuse"] = "quarantine"
    """What an authentic delivery beyond use gets: 200 and quarantine, or 422."""
    max_failures: Int = Field(default=5, ge=1, le=1000)
    """After how many failures of one event it is answered 200 and stays in quarantine."""
    silent_after: Moment | None = None
    """After so long without a delivery it is told of; absent: an hour in which scans correct."""
    keep_claims: Moment | None = None
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

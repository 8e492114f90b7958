"""What may be said about a sender's API and the resources that it holds."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from reconciler.settings.values import (
    Bool,
    Duration,
    Expr,
    Filled,
    Globs,
    HeaderName,
    HeaderValue,
    Int,
    Moment,
    Proxy,
    SecretRef,
    Section,
    Size,
    Spelled,
    Whole,
    matching,
)

PATH_SENTENCE = 'not a path: it begins with a slash, like "/v1/orders"'
RATE_SENTENCE = 'not a rate: a number and a time, like "10/s", "100/m" or "1000/h"'

Path = Annotated[str, matching(r"/[^\s{}]*", PATH_SENTENCE), Spelled("path")]
PathText = Annotated[str, matching(r"/.*", PATH_SENTENCE), Spelled("path template")]
Rate = Annotated[str, matching(r"[1-9][0-9]{0,5}/[smh]", RATE_SENTENCE), Spelled("rate")]
Format = Literal["rfc3339", "s", "ms", "us", "ns"]


def _shape(value: Any) -> str:
    """Tell a table from a plain expression, so that a mistake is reported once."""
    return "text" if isinstance(value, str) else "table"


class TimeSpec(Section):
    value: Expr
    """Where the time stands."""
    format: Format = "rfc3339"
    """How it is written: RFC 3339, or a count since 1970."""
    zone: str | None = None
    """The zone of times written without an offset (`UTC`, `Europe/Berlin`)."""


class VersionSpec(Section):
    value: Expr | None = None
    """Where the version stands; none for `observed`."""
    kind: Literal["integer", "timestamp", "observed"] = "integer"
    """How versions are read and compared."""
    format: Format = "rfc3339"
    """How a timestamp is written."""
    zone: str | None = None
    """The zone of timestamps written without an offset."""


class FieldSpec(Section):
    value: Expr
    """Where the field stands in the object."""
    type: Literal["any", "text", "integer", "decimal", "boolean", "timestamp"] = "any"
    """What it is read as, the same on every path."""


Either = Discriminator(
    _shape, custom_error_type="shape", custom_error_message="neither an expression nor a table"
)
Moments = Annotated[
    Annotated[Expr, Tag("text")] | Annotated[TimeSpec, Tag("table")],
    Either,
    Spelled("expression or table"),
]
Version = Annotated[
    Annotated[Expr, Tag("text")] | Annotated[VersionSpec, Tag("table")],
    Either,
    Spelled("expression or table"),
]
FieldValue = Annotated[
    Annotated[Expr, Tag("text")] | Annotated[FieldSpec, Tag("table")],
    Either,
    Spelled("expression or table"),
]


class ApiSettings(Section):
    base_url: str
    """Where the sender's API is; pages are followed on this origin only."""
    bearer: SecretRef | None = None
    """The bearer token, by reference."""
    headers: dict[HeaderName, HeaderValue] = {}
    """Static headers; a value may be a secret reference."""
    rate: Rate | None = None
    """How many requests we may make, like `10/s`."""
    timeout: Moment = timedelta(seconds=30)
    """How long one request may take in all."""
    max_response: Size = 32 * 1024**2
    """How large an answer may be, inflated."""
    proxy: Proxy | None = None
    """The HTTP proxy to go through, or a reference to it; none comes from the environment."""
    allow_private: tuple[str, ...] = ()
    """Address ranges that may be reached though they are not public; loopback is private."""


class PaginationSettings(Section):
    style: Literal["cursor", "page", "offset", "last_id", "next_url", "link"]
    """How the listing goes on."""
    next: Expr | None = None
    """Where the next cursor or URL stands in the answer."""
    param: Filled | None = None
    """The query parameter that carries the cursor, page, offset or last id."""
    first: Int = Field(default=1, ge=0)
    """The number of the first page."""
    more: Expr | None = None
    """Where the answer says whether there is more; true with no way on is a broken page."""
    size_param: Filled | None = None
    """The query parameter that carries the page size."""
    size: Int | None = Field(default=None, ge=1, le=10000)
    """How many items a page holds."""


class SinceSettings(Section):
    param: Filled
    """The query parameter that asks for what changed since."""
    format: Format = "rfc3339"
    """How it is written."""
    lookback: Duration = timedelta(minutes=10)
    """How far each incremental scan reaches back behind the watermark."""


class ListSettings(Section):
    path: Path
    """The state-listing endpoint, below the API's `base_url`."""
    items: Whole
    """Where the items stand in the answer; "" is all of it."""
    from_: Whole = Field(default="", alias="from")
    """Where the object stands in an item; "" is all of it."""
    key: Expr | None = None
    """The key, where it differs from the resource's."""
    version: Version | None = None
    """The version, where it stands elsewhere."""
    changed_at: Moments | None = None
    """When the item changed, by the sender's clock."""
    created_at: Moments | None = None
    """When the item was created, by the sender's clock."""
    params: dict[Filled, str | Int | Bool] = {}
    """Fixed query parameters."""
    pagination: PaginationSettings | None = None
    """How the listing goes on; absent: it is one page."""
    since: SinceSettings | None = None
    """How to ask for what changed; absent: every scan is full."""
    order: Literal["oldest", "newest", "unknown"] = "unknown"
    """In which order of change the items come."""
    interval: Duration = Field(default=timedelta(minutes=5), ge=timedelta(seconds=1))
    """How often it is scanned."""
    full_every: Duration = Field(default=timedelta(hours=24), ge=timedelta(seconds=1))
    """How often it is scanned in full."""
    max_absent: Int = Field(default=5, ge=0, le=100)
    """Percent of our rows that a full scan may miss before it is taken for an outage."""


class GetSettings(Section):
    path: PathText
    """The endpoint of one resource, with `{{ key }}`."""
    from_: Whole = Field(default="", alias="from")
    """Where the object stands in the answer; "" is all of it."""
    key: Expr | None = None
    """The key, where it differs from the resource's."""
    version: Version | None = None
    """The version, where it stands elsewhere."""
    absent: Literal["deleted", "unknown"] = "unknown"
    """What 404 and 410 mean."""


class ResourceSettings(Section):
    on: Globs = ()
    """Event types that are about this kind."""
    from_: Whole = Field(default="", alias="from")
    """Where the object that describes the resource stands in the event."""
    key: Expr
    """The key, relative to the object."""
    version: Version
    """The version, relative to the object."""
    fields: dict[Filled, FieldValue] = {}
    """What we keep of it; absent: the whole object."""
    thin: Bool = False
    """Whether events carry no state, so that each asks for a read."""
    changed_at: Moments | None = None
    """When it changed, by the sender's clock."""
    created_at: Moments | None = None
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

"""What one call may look like: `METHOD /path`, headers, one body, all frozen to bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from outbox.bodies import FORM, Lists, flattened, with_key, written_form
from reconciler import exact_json
from reconciler.errors import ReconcilerError
from reconciler.expressions.meaning import text_of

METHODS = ("POST", "PUT", "PATCH", "DELETE", "GET")
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

#: RFC 9110, 5.6.2
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: RFC 9110, 5.5, without the obsolete bytes above ASCII; spaces at the ends would be trimmed
HEADER_VALUE = re.compile(r"[!-~]([\t -~]*[!-~])?")
#: RFC 3986, 3.3 and 3.4: what a path and a query may hold when everything else is encoded
PATH = re.compile(r"/(?!/)(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")

LANE_BYTES = 1024  #: a resource's key twice

RESERVED_HEADERS = frozenset(
    [
        "host",
        "authorization",
        "proxy-authorization",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
    ]
)  #: said by the destination, or by HTTP itself


def split_request(request: str) -> tuple[str, str]:
    """
    Take `METHOD /path` apart; CallError says what is wrong with it.

    >>> split_request("POST /v1/charges")
    ('POST', '/v1/charges')
    """
    method, _, path = request.partition(" ")
    if method not in METHODS:
        raise CallError(
            f'{request!r} must be `METHOD /path`, like "POST /v1/charges";'
            f" the methods are {', '.join(METHODS)}"
        )
    if not path.startswith("/") or path.startswith("//"):
        raise CallError(f"the path in {request!r} must begin with one / (the host is base_url's)")
    return method, path


def check_path(path: str) -> str:
    """Return *path* if it can stand in a request line as it is; CallError says why it cannot."""
    if not PATH.fullmatch(path):
        raise CallError("the path must begin with one / and be percent-encoded")
    pieces = path.partition("?")[0].lower().replace("%2e", ".").split("/")
    if {".", ".."} & set(pieces) or "" in pieces[1:-1]:
        raise CallError("the path must not hold an empty piece, . or ..")
    return path


def check_header_name(name: str, *, key_header: str | None) -> None:
    """Raise CallError where *name* is no header's name, or not the caller's to set."""
    if not HEADER_NAME.fullmatch(name):
        raise CallError(f"{name!r} is not a header's name")
    if name.lower() in RESERVED_HEADERS:
        raise CallError(f"{name} is set at send time; credentials belong to the destination")
    if key_header is not None and name.lower() == key_header.lower():
        raise CallError(f"{name} carries the idempotency key: set idempotency_key instead")


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return *headers* if their values can be sent as they are; CallError names the first other."""
    for name, value in headers.items():
        if value and not HEADER_VALUE.fullmatch(value):
            raise CallError(
                f"the value of header {name} must be printable ASCII, no space at either end"
            )
    return headers


def check_lane(text: str) -> str:
    """Return *text* if it can name a lane; CallError says why it cannot."""
    if not text.strip():
        raise CallError("the lane's name is empty: every call without one would wait for the other")
    if len(text.encode()) > LANE_BYTES:
        raise CallError(f"the lane's name is longer than {LANE_BYTES} bytes")
    return text


def check_content(content: Content, *, key_field: str | None) -> None:
    """Raise CallError where *content* has two bodies, or a key that is not its own to set."""
    if content.has_json and content.form is not None:
        raise CallError("a call has one body: json or form")
    held: object = content.json if content.form is None else content.form
    for part in key_field.split(".") if key_field else ():
        if not isinstance(held, Mapping) or part not in held:
            return
        held = held[part]
    if key_field:
        raise CallError(
            f"{key_field} in the body carries the idempotency key: set idempotency_key instead"
        )


def freeze(
    *, method: str, path: str, headers: Mapping[str, str], content: Content, keyed: Keyed
) -> Call:
    """Make a call's final form; headers have lower-case names. CallError or NotJsonError."""
    check_content(content, key_field=keyed.field)
    body, typed = b"", {}
    if content.form is not None:
        body = written_form(fields_of(content.form, keyed.lists))
        typed = {"content-type": FORM}
    elif content.has_json:
        body = exact_json.dumps(content.json).encode()
        typed = {"content-type": "application/json"}
    if content.query:
        joint = "&" if "?" in path else "?"
        fields = fields_of(content.query, keyed.lists)
        path = f"{path}{joint}{urlencode(fields, quote_via=quote, safe='')}" if fields else path
    lowered = typed | {name.lower(): value for name, value in headers.items()}
    if keyed.field is not None and method != "GET":
        try:
            body = with_key(body, lowered.get("content-type", ""), field=keyed.field, key=keyed.key)
        except ValueError as error:
            reason = f"{error}" if body else f"its key goes into {keyed.field}: say json or form"
            raise CallError(reason) from None
    return Call(method=method, path=check_path(path), headers=check_headers(lowered), body=body)


def fields_of(value: exact_json.Json, lists: Lists) -> list[tuple[str, str]]:
    """The flat fields of a form or a query; CallError names one without a text."""
    fields = []
    for name, inner in flattened(value, lists=lists):
        if inner is None:
            raise CallError(f"{name} is null, which a form cannot say")
        try:
            text = text_of(inner)
            text.encode()
        except UnicodeEncodeError:
            raise CallError(f"{name} holds half of a surrogate pair") from None
        fields.append((name, text))
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a call brings: one body or none, and a query."""

    json: exact_json.Json = None
    has_json: bool = False  #: null is a body too
    form: exact_json.Json = None  #: an object, or None where there is no form
    query: exact_json.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A call's outgoing key, and how its destination wants it and its lists written."""

    key: str
    field: str | None = None  #: of the body, where it carries the key
    lists: Lists = "indexed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it goes out, but for host, credentials and key."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class CallError(ReconcilerError):
    """A call that cannot be made; says what would be right."""

"""Deliveries that want an answer of their own: challenges, pings, checks of the address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from reconciler.exact_json import Json, NotJsonError, parse
from reconciler.expressions import CaseInsensitive, Expression, ExpressionError, Template

PARAMETERS_MAX = 100  #: of a query; a handshake has a handful


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """Which deliveries are one, and what they are answered."""

    when: Expression
    signed: bool
    status: int
    content_type: str
    text: Template

    @property
    def asks_method(self) -> bool:
        """Whether it says something about the method: only then others than POST are looked at."""
        return "method" in self.when.names


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a handshake is answered."""

    status: int
    content_type: str
    text: str


def greet(
    handshakes: Sequence[Handshake],
    *,
    body: bytes,
    headers: Mapping[str, str],
    query: bytes,
    method: str,
) -> Greeting | None:
    """
    Return the answer of the first of *handshakes* that this delivery is, or None.

    A body that is not JSON is null here, and so is what an expression cannot work with: hostile
    content is no handshake, and no error either.
    """
    if not handshakes:
        return None
    context = {
        "body": body_of(handshakes, body),
        "headers": CaseInsensitive(headers),
        "query": query_of(query),
        "method": method,
    }
    for handshake in handshakes:
        try:
            if handshake.when.truth(context):
                return Greeting(
                    status=handshake.status,
                    content_type=handshake.content_type,
                    text=handshake.text.text(context),
                )
        except ExpressionError:
            continue
    return None


def body_of(handshakes: Sequence[Handshake], body: bytes) -> Json:
    """Parse only where a handshake looks at it: an unsigned body is a stranger's."""
    if not any("body" in one.when.names | one.text.names for one in handshakes):
        return None
    try:
        return parse(body)
    except NotJsonError:
        return None


def query_of(query: bytes) -> dict[str, Json]:
    """Return the first value of each parameter; an unreadable query has none."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=PARAMETERS_MAX
        )
    except ValueError:
        return {}
    return {name: value for name, value in reversed(pairs) if "\x00" not in name + value}

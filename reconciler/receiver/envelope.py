"""From a delivery to events: pure, and total: whatever the content is, it is answered for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from reconciler import exact_items, exact_json
from reconciler.errors import ReconcilerError
from reconciler.exact_items import Poison
from reconciler.exact_json import Json
from reconciler.expressions import CaseInsensitive, Expression, ExpressionError
from reconciler.ledger.event import OWN_PREFIXES, Event, Observation, Origin
from reconciler.ledger.projection import ProjectionError
from reconciler.ledger.versions import VersionError, parse_time, to_datetime
from reconciler.receiver.contract import KindContract, SenderContract

log = structlog.get_logger()

ID_MAX = 512  #: bytes of an id or a type; more would not fit into an index for ever
ITEMS_MAX = 2000  #: events of one delivery: all of them must be stored while its sender waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """An authentic event, or delivery, that is beyond use: kept whole in quarantine."""

    sender: str
    raw: bytes
    headers: Mapping[str, str]
    fault: str  #: why; never empty, and nothing of the content in it
    event_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one request carries, in its order."""

    events: tuple[Event | Malformed, ...]
    batch: bool  #: several events by the sender's contract, however many there are


def read_delivery(contract: SenderContract, raw: bytes, headers: Mapping[str, str]) -> Delivery:
    """
    Read the events of an authentic delivery.

    *raw* is the body, inflated; *headers* with their secrets masked. Never raises: what cannot
    be used is Malformed, an item of a batch by itself and everything else as a whole.
    """
    try:
        if contract.items is None:
            event = _event(contract, _parsed(raw), raw, headers)
            return Delivery(events=(event,), batch=False)
        items = _items(contract.items, raw, headers)
    except _UnusableError as error:
        whole = Malformed(
            sender=contract.name,
            raw=raw,
            headers=headers,
            fault=error.fault,
            event_id=error.event_id,
        )
        return Delivery(events=(whole,), batch=False)
    return Delivery(events=tuple(_item(contract, item, headers) for item in items), batch=True)


def reread(
    contract: SenderContract,
    raw: bytes,
    headers: Mapping[str, str],
    event_id: str | None = None,
    *,
    origin: Origin = Origin.WEBHOOK,
) -> Event:
    """
    Make the event again from what was stored of it; an item of a batch was stored by itself.

    Raises MalformedError for what is (still) beyond use, or is not *event_id* any more.
    """
    try:
        event = _event(contract, _parsed(raw), raw, headers)
    except _UnusableError as error:
        raise MalformedError(error.fault) from None
    if event_id is not None and event.event_id != event_id:
        raise MalformedError("event.id: not the id that it was stored under")
    return replace(event, origin=origin)


def rereader(
    contracts: Mapping[str, SenderContract],
) -> Callable[[str, bytes, Mapping[str, str], str | None], Event]:
    """Return `reread` by the sender's name, as the ledger's rules carry it."""

    def again(sender: str, raw: bytes, headers: Mapping[str, str], event_id: str | None) -> Event:
        if sender not in contracts:
            raise MalformedError("its sender is not configured any more")
        return reread(contracts[sender], raw, headers, event_id)

    return again


def _item(
    contract: SenderContract, item: "Json | Poison", headers: Mapping[str, str]
) -> Event | Malformed:
    if isinstance(item, Poison):
        fault = str(exact_json.NotJsonError(item.fault))
        return Malformed(sender=contract.name, raw=item.raw, headers=headers, fault=fault)
    raw = exact_json.dumps(item).encode()
    try:
        return _event(contract, item, raw, headers)
    except _UnusableError as error:
        return Malformed(
            sender=contract.name,
            raw=raw,
            headers=headers,
            fault=error.fault,
            event_id=error.event_id,
        )


def _event(contract: SenderContract, body: Json, raw: bytes, headers: Mapping[str, str]) -> Event:
    context = _context(body, headers)
    event_id = _identifier("event.id", contract.event_id, context)
    if event_id.startswith(OWN_PREFIXES):
        raise _UnusableError("event.id: begins like the id of a correction", event_id)
    try:
        event_type = _identifier("event.type", contract.event_type, context)
        occurred_at = _occurred_at(contract, context)
        kind = contract.kind_for(event_type)
        observation = _observation(kind, event_type, context) if kind else None
    except _UnusableError as error:
        raise _UnusableError(error.fault, event_id) from None
    return Event(
        sender=contract.name,
        event_id=event_id,
        type=event_type,
        origin=Origin.WEBHOOK,
        occurred_at=occurred_at,
        body=body,
        headers=headers,
        raw=raw,
        observation=observation,
    )


def _observation(kind: KindContract, event_type: str, context: Mapping[str, Json]) -> Observation:
    source = context["body"] if kind.from_ is None else _value("from", kind.from_, context)
    try:
        observation = kind.reader.read(source, path="event")
    except ProjectionError as error:
        raise _UnusableError(str(error)) from None
    deleted = kind.reader.deleted_on(event_type)
    return replace(observation, deleted=True) if deleted else observation


def _occurred_at(contract: SenderContract, context: Mapping[str, Json]) -> datetime | None:
    """
    Return when it happened, by the sender's clock; None where that cannot be read.

    Like an event that does not say: it must not cost us what it tells of a resource.
    """
    if contract.occurred_at is None or contract.occurred_spec is None:
        return None
    try:
        value = contract.occurred_at.value(context)
        if value is None:
            return None
        nanoseconds = parse_time(value, contract.occurred_spec)
    except (ExpressionError, VersionError) as error:
        log.warning("receiver.time_refused", sender=contract.name, reason=error.reason)
        return None
    return to_datetime(nanoseconds)


def _items(items: Expression, raw: bytes, headers: Mapping[str, str]) -> "list[Json | Poison]":
    """Find the events of a batch; one that can never be stored takes no neighbour down."""

    def of(body: Json) -> list[Json]:
        found = _value("event.items", items, _context(body, headers))
        if not isinstance(found, list):
            raise _UnusableError("event.items: not a list")
        if len(found) > ITEMS_MAX:
            raise _UnusableError(f"event.items: more than {ITEMS_MAX} events")
        return found

    try:
        return exact_items.read(raw, of).items
    except exact_json.NotJsonError as error:
        raise _UnusableError(str(error)) from None


def _identifier(name: str, expression: Expression, context: Mapping[str, Json]) -> str:
    value = _value(name, expression, context)
    if value is None:
        raise _UnusableError(f"{name}: missing")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _UnusableError(f"{name}: neither text nor a whole number")
    try:
        text = str(value)
        size = len(text.encode())
    except ValueError:  # half a surrogate pair; more digits than Python writes
        raise _UnusableError(f"{name}: cannot be stored") from None
    if not text:
        raise _UnusableError(f"{name}: empty")
    if "\x00" in text:
        raise _UnusableError(f"{name}: holds U+0000")
    if size > ID_MAX:
        raise _UnusableError(f"{name}: longer than {ID_MAX} bytes")
    return text


def _value(name: str, expression: Expression, context: Mapping[str, Json]) -> Json:
    try:
        return expression.value(context)
    except ExpressionError as error:
        raise _UnusableError(f"{name}: {error.reason}") from None


def _context(body: Json, headers: Mapping[str, str]) -> dict[str, Json]:
    return {"body": body, "headers": CaseInsensitive(headers)}


def _parsed(raw: bytes) -> Json:
    try:
        return exact_json.parse(raw)
    except exact_json.NotJsonError as error:
        raise _UnusableError(str(error)) from None


class MalformedError(ReconcilerError):
    """Stored bytes are beyond use, by the configuration of now."""


class _UnusableError(Exception):
    def __init__(self, fault: str, event_id: str | None = None) -> None:
        super().__init__(fault)
        self.fault = fault
        self.event_id = event_id

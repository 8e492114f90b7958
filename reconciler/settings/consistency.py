"""Rules between settings: each value may be fine, and two of them together still be wrong."""

from collections.abc import Iterator, Mapping
from datetime import timedelta

from reconciler.settings.addresses import (
    is_loopback,
    refuse_database_url,
    refuse_web_url,
)
from reconciler.settings.consistency_destinations import check_caller, check_destinations
from reconciler.settings.consistency_kinds import check_kinds
from reconciler.settings.documents import Finding, dotted
from reconciler.settings.explain import spell_duration
from reconciler.settings.models import (
    SenderSettings,
    Settings,
)
from reconciler.settings.positions import KeyPath

#: what the relay needs beside the call itself, between taking an entry and recording the verdict
LEASE_MARGIN = timedelta(seconds=2)
RESERVED = "reconciler"


def check(settings: Settings) -> Iterator[Finding]:
    """Find every contradiction; for no order and no database."""
    yield from _names(settings)
    yield from _server(settings)
    yield from _database(settings)
    yield from _relay(settings)
    yield from _entries(settings)
    for name, sender in settings.senders.items():
        yield from _sender(("senders", name), sender, settings)
        yield from check_kinds(name, settings)
    yield from check_destinations(settings)


def _names(settings: Settings) -> Iterator[Finding]:
    named: list[tuple[KeyPath, Mapping[str, object]]] = [
        (("senders",), settings.senders),
        (("destinations",), settings.destinations),
        (("effects",), settings.effects),
    ]
    for name, sender in settings.senders.items():
        named.append((("senders", name, "resources"), sender.resources))
    for path, table in named:
        if RESERVED in table:
            yield Finding(
                path=(*path, RESERVED), message='"reconciler" is our own name: choose another'
            )


def _server(settings: Settings) -> Iterator[Finding]:
    server = settings.server
    if server.listen == server.admin_listen and not server.listen.endswith(":0"):
        yield Finding(
            path=("server", "admin_listen"),
            message="the same address as listen: operators have a listener of their own",
        )
    if not is_loopback(server.admin_listen) and server.admin_token is None:
        yield Finding(
            path=("server", "admin_listen"),
            message="others can reach this address, so it needs an admin_token, like"
            ' admin_token = "credential:admin-token"; or listen on 127.0.0.1',
            about=(("server", "admin_token"),),
        )


def _database(settings: Settings) -> Iterator[Finding]:
    database = settings.database
    if database.url is not None and (wrong := refuse_database_url(database.url)):
        yield Finding(path=("database", "url"), message=wrong)
    if database.url is None and database.embedded == "never":
        yield Finding(
            path=("database", "embedded"),
            message='"never" leaves no database: give a url, or embedded = "auto"',
            about=(("database", "url"),),
        )
    if database.schema_.startswith("pg_") or database.schema_ == "information_schema":
        yield Finding(
            path=("database", "schema"), message="a schema of PostgreSQL's own: choose another"
        )


def _relay(settings: Settings) -> Iterator[Finding]:
    relay = settings.relay
    if relay.backoff_cap < relay.backoff_base:
        yield Finding(
            path=("relay", "backoff_cap"),
            message=f"below backoff_base ({spell_duration(relay.backoff_base)}):"
            " the longest wait is no shorter than the first",
            about=(("relay", "backoff_base"),),
        )
    slowest = max(settings.destinations.items(), key=lambda item: item[1].timeout, default=None)
    if slowest is None:
        return
    name, destination = slowest
    needed = destination.timeout + LEASE_MARGIN
    timeout: KeyPath = ("destinations", name, "timeout")
    if relay.lease < needed:
        yield Finding(
            path=("relay", "lease") if "lease" in relay.model_fields_set else timeout,
            message=f"relay.lease ({spell_duration(relay.lease)}) must outlast the longest call:"
            f" one to {name} may take {spell_duration(destination.timeout)}, and two relays must"
            f' never work on one entry. Say lease = "{spell_duration(needed)}" or more in [relay],'
            f" or a shorter {dotted(timeout)}",
            about=(timeout, ("relay", "lease")),
        )


def _sender(path: KeyPath, sender: SenderSettings, settings: Settings) -> Iterator[Finding]:
    if not sender.secrets:
        yield Finding(
            path=(*path, "secrets"),
            message="missing: without a secret no delivery can be told from a forgery;"
            f' write secrets = ["env:{str(path[-1]).upper()}_SECRET"]',
        )
    yield from _retention(path, sender, settings)
    if sender.public_url is not None and (wrong := refuse_web_url(sender.public_url, base=False)):
        yield Finding(path=(*path, "public_url"), message=wrong)
    if sender.api is not None:
        yield from check_caller((*path, "api"), sender.api)


def _retention(path: KeyPath, sender: SenderSettings, settings: Settings) -> Iterator[Finding]:
    kept = sender.keep_claims or settings.retention.claims
    least = 2 * sender.retry_window
    if kept >= least:
        return
    path_of_claims: KeyPath = ("retention", "claims")
    if sender.keep_claims is not None:
        said: KeyPath = (*path, "keep_claims")
    elif "claims" in settings.retention.model_fields_set:
        said = path_of_claims
    else:
        said = (*path, "retry_window")
    yield Finding(
        path=said,
        message=f"{path[-1]} repeats a delivery for {spell_duration(sender.retry_window)}, so its"
        f" event ids must be remembered for twice as long, not for {spell_duration(kept)}: say"
        f' keep_claims = "{spell_duration(least)}" or more',
        about=((*path, "retry_window"), (*path, "keep_claims"), path_of_claims),
    )


def _entries(settings: Settings) -> Iterator[Finding]:
    """Entries go before their claims, and not before their provider has forgotten their keys."""
    kept = settings.retention.entries
    if kept is None:
        return
    path: KeyPath = ("retention", "entries")
    for name, sender in settings.senders.items():
        claims = sender.keep_claims or settings.retention.claims
        if kept > claims:
            yield Finding(
                path=path,
                message=f"longer than the event ids of {name} ({spell_duration(claims)}): a claim"
                f' outlives its entries. Say entries = "{spell_duration(claims)}" or less, or'
                " keep the ids for longer",
                about=(("senders", name, "keep_claims"), ("retention", "claims")),
            )
            return
    for name, destination in settings.destinations.items():
        if kept < destination.key_ttl:
            yield Finding(
                path=path,
                message=f"{name} knows an idempotency key for {spell_duration(destination.key_ttl)}"
                " (its key_ttl), and for as long we must know what it was used for: say entries ="
                f' "{spell_duration(destination.key_ttl)}" or more',
                about=(("destinations", name, "key_ttl"),),
            )
            return

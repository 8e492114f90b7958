"""What is allowed, and still probably not what was meant."""

import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from reconciler.errors import Problem
from reconciler.settings.addresses import is_loopback
from reconciler.settings.documents import Finding, dotted
from reconciler.settings.explain import spell_duration
from reconciler.settings.models import (
    DestinationSettings,
    HttpDestinationSettings,
    ResourceSettings,
    SenderSettings,
    Settings,
    SmtpDestinationSettings,
)
from reconciler.settings.positions import KeyPath
from reconciler.settings.secrets import Secrets, references

USUAL_TOLERANCE = timedelta(minutes=5)
LONG_ANSWER = timedelta(seconds=30)
SHORT_TOLERANCE = timedelta(seconds=30)


def lint(settings: Settings, *, secrets: Secrets | None = None) -> list[Problem]:
    """
    Find what deserves a second look; none of it stops the daemon.

    With the *secrets*, also those that two senders share. `Loaded.place` adds file and line.
    """
    found = [
        *_settings(settings),
        *_secrets(settings, secrets),
        *(each for name in settings.senders for each in _sender(name, settings)),
        *(each for name in settings.destinations for each in _destination(name, settings)),
    ]
    return [Problem(key=dotted(finding.path), message=finding.message) for finding in found]


def _settings(settings: Settings) -> Iterator[Finding]:
    if not settings.senders:
        yield Finding(path=("senders",), message="there is no sender: every webhook gets 404")
    if settings.database.password is not None and settings.database.url is None:
        yield Finding(
            path=("database", "password"), message="unused: the private PostgreSQL needs none"
        )
    used = {effect.destination for effect in settings.effects.values()}
    for name in settings.destinations.keys() - used if not settings.handlers else ():
        yield Finding(path=("destinations", name), message="no effect goes there")


def _secrets(settings: Settings, secrets: Secrets | None) -> Iterator[Finding]:
    seen: dict[str, KeyPath] = {}
    for path, reference in references(settings):
        if reference.startswith("file:"):
            yield from _readable(path, Path(reference.removeprefix("file:")))
        if secrets is None or path[2:3] != ("secrets",):
            continue
        other = seen.setdefault(secrets.resolve(reference), path)
        if other != path:
            whose = "listed twice" if other[1] == path[1] else f"also the secret of {other[1]}"
            yield Finding(path=path, message=f"{whose}: each sender should have its own")


def _readable(path: KeyPath, file: Path) -> Iterator[Finding]:
    if file.stat().st_mode & stat.S_IROTH:
        yield Finding(path=path, message=f"{file} can be read by every user: chmod o-r")


def _sender(name: str, settings: Settings) -> Iterator[Finding]:
    path: KeyPath = ("senders", name)
    sender = settings.senders[name]
    yield from _signature((*path, "signature"), sender)
    bodies = sender.keep_bodies if sender.keep_bodies is not None else settings.retention.bodies
    claims = sender.keep_claims or settings.retention.claims
    if bodies > claims:
        yield Finding(
            path=(*path, "keep_bodies"),
            message=f"bodies are kept for {spell_duration(bodies)}, longer than the ids of their"
            f" events ({spell_duration(claims)})",
        )
    if bodies < sender.grace:
        yield Finding(
            path=(*path, "keep_bodies"),
            message="shorter than grace: events that wait for a read need theirs again",
        )
    if sender.answer_within > LONG_ANSWER:
        yield Finding(
            path=(*path, "answer_within"),
            message="senders hang up sooner, and repeat what was applied already",
        )
    if sender.api is not None:
        yield from _plain((*path, "api", "base_url"), sender.api.base_url)
        if settings.polling.lease < sender.api.timeout:
            yield Finding(
                path=("polling", "lease"),
                message=f"shorter than one request to {name} may take"
                f" ({spell_duration(sender.api.timeout)}): another replica may start beside it",
            )
    for kind, resource in sender.resources.items():
        yield from _kind((*path, "resources", kind), resource)


def _kind(path: KeyPath, resource: ResourceSettings) -> Iterator[Finding]:
    if resource.list is None:
        if resource.get is None:
            yield Finding(path=path, message="has neither list nor get: what is lost stays lost")
        return
    if resource.first_seen is not None:
        yield Finding(
            path=(*path, "first_seen"), message="unused: a kind with a list has a baseline"
        )
    since = resource.list.since
    if since is not None and not since.lookback:
        yield Finding(
            path=(*path, "list", "since", "lookback"),
            message="without it, two changes in one instant may lose one of them",
        )


def _signature(path: KeyPath, sender: SenderSettings) -> Iterator[Finding]:
    signature = sender.signature
    timed = signature.timestamp_header or signature.timestamp_field
    if not timed:
        return
    if "timestamp" not in signature.signed:
        yield Finding(
            path=(*path, "signed"),
            message="does not cover the time of signing, which therefore proves nothing",
        )
    elif signature.tolerance < SHORT_TOLERANCE:
        yield Finding(
            path=(*path, "tolerance"),
            message="clocks differ by seconds: genuine deliveries will be refused",
        )
    elif signature.tolerance > max(USUAL_TOLERANCE, sender.retry_window):
        yield Finding(
            path=(*path, "tolerance"),
            message="longer than the sender repeats a delivery"
            f" ({spell_duration(sender.retry_window)}): a captured one stays valid for no use",
        )


def _destination(name: str, settings: Settings) -> Iterator[Finding]:
    path: KeyPath = ("destinations", name)
    destination = settings.destinations[name]
    match destination:
        case HttpDestinationSettings():
            yield from _plain((*path, "base_url"), destination.base_url)
        case SmtpDestinationSettings():
            yield from _mail(path, destination)
    if not destination.idempotent:
        return
    margin = destination.key_margin
    if margin is None:
        margin = settings.relay.lease + destination.timeout
    if margin >= destination.key_ttl:
        yield Finding(
            path=(*path, "key_ttl"),
            message=f"no longer than its margin ({spell_duration(margin)}): a call that may have"
            " been made is never repeated",
        )
    elif _retries(destination, settings) > destination.key_ttl - margin:
        yield Finding(
            path=(*path, "max_attempts"),
            message=f"the last of them may come when the key ({spell_duration(destination.key_ttl)}"
            " less its margin) is no longer remembered; those are not made",
        )


def _mail(path: KeyPath, destination: SmtpDestinationSettings) -> Iterator[Finding]:
    if destination.tls == "none" and not is_loopback(f"{destination.host}:0"):
        yield Finding(
            path=(*path, "tls"), message='"none" sends every mail in the open: use "starttls"'
        )
    if destination.from_ is None and not is_loopback(f"{destination.host}:0"):
        yield Finding(
            path=(*path, "from"),
            message=f"missing: mails are from reconciler@{destination.host}, where nobody may read",
        )


def _retries(destination: DestinationSettings, settings: Settings) -> timedelta:
    """How long the attempts of one entry may take in all, when every wait is the longest."""
    waited, wait = timedelta(0), settings.relay.backoff_base
    for _ in range(destination.max_attempts - 1):
        waited += wait
        wait = min(2 * wait, settings.relay.backoff_cap)
    return waited


def _plain(path: KeyPath, url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(f"{parts.hostname}:0"):
        yield Finding(path=path, message="http:// sends everything in the open: use https://")

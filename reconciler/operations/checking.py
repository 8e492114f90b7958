"""`check`: everything that `serve` would build, and what it would reach."""

import ipaddress
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from outbox.destinations.connecting import allowed_addresses
from outbox.egress import BlockedError, refusal
from reconciler import database
from reconciler.egress import egress_of, listeners_of
from reconciler.errors import ConfigError, Problem, ReconcilerError
from reconciler.ledger import user_sql
from reconciler.ledger.lane_questions import lane_worries
from reconciler.operations.assembly import Assembly, assemble
from reconciler.operations.opening import opened
from reconciler.polling import single
from reconciler.settings.destinations import port_of
from reconciler.settings.lint import lint
from reconciler.settings.models import AnyDestination, Settings, SmtpDestinationSettings

Document = dict[str, Any]


async def check(
    path: Path | None, *, online: bool = False, environ: Mapping[str, str] = os.environ
) -> Document:
    """
    What is wrong with the configuration at *path*, and what deserves a second look.

    Never raises ConfigError: `problems` has everything, each with file, line and key.
    """
    try:
        assembly = assemble(path, environ=environ)
    except ConfigError as error:
        found = error.problems or (Problem(key="", message=str(error)),)
        return {"problems": told(found), "warnings": [], "online": []}
    effects = (each for sender in assembly.rules.senders.values() for each in sender.effects)
    worries = lint(assembly.loaded.settings, secrets=assembly.loaded.secrets)
    away = () if online else guarded(assembly.loaded.settings)  # online each of them is tried
    warnings = told(assembly.loaded.place([*worries, *lane_worries(effects), *away]))
    if not online:
        return {"problems": [], "warnings": warnings, "online": []}
    async with aclosing(assembly):
        lines, problems = await reached(assembly)
    return {"problems": told(problems), "warnings": warnings, "online": lines}


async def reached(assembly: Assembly) -> tuple[list[str], list[Problem]]:
    """Reach the database, one page of each listing, and the address of each destination."""
    lines: list[str] = []
    problems: list[Problem] = []
    try:
        async with opened(assembly.loaded) as found:
            await database.check_durable(found.engine)
            problems += assembly.loaded.place(await user_sql.verify(found.engine, assembly.rules))
            lines.append(f"database: {found.url}")
    except ReconcilerError as error:
        problems.append(Problem(key="database", message=str(error)))
    for (sender, kind), source in assembly.sources.items():
        if source.listing is None:
            continue
        key = f"senders.{sender}.resources.{kind}.list"
        try:
            items = await single.first_page(assembly.apis[sender], source)
            lines.append(f"{key}: {items} items on the first page")
        except ReconcilerError as error:
            problems += assembly.loaded.place([Problem(key=key, message=str(error))])
    listeners = listeners_of(assembly.loaded.settings)
    for name, destination in assembly.loaded.settings.destinations.items():
        key, host, port = place_of(destination)
        egress = egress_of(destination.allow_private, listeners)
        try:
            await allowed_addresses(host or "", port, egress)
            lines.append(f"destinations.{name}: {host} has an address")
        except (OSError, BlockedError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            message = reason if reason.startswith(f"{host} ") else f"{host}: {reason}"
            problem = Problem(key=f"destinations.{name}.{key}", message=message)
            problems += assembly.loaded.place([problem])
    return lines, problems


def guarded(settings: Settings) -> Iterator[Problem]:
    """Addresses that the guard will not let through, where they are written and not looked up."""
    listeners = listeners_of(settings)
    for name, destination in settings.destinations.items():
        key, host, port = place_of(destination)
        if host is None or not is_address(host):
            continue
        why = refusal(host, port, egress_of(destination.allow_private, listeners))
        if why is not None:
            message = f"{host} may not be reached: {why}"
            yield Problem(key=f"destinations.{name}.{key}", message=message)


def is_address(host: str) -> bool:
    """
    Whether a host is written as an address.

    >>> is_address("127.0.0.1"), is_address("::1"), is_address("api.example.com")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def place_of(destination: AnyDestination) -> tuple[str, str | None, int]:
    """The key that says where a destination is, its host and its port."""
    if isinstance(destination, SmtpDestinationSettings):
        return "host", destination.host, port_of(destination)
    url = urlsplit(destination.base_url)
    return "base_url", url.hostname, url.port or (443 if url.scheme == "https" else 80)


def told(problems: Iterable[Problem]) -> list[Document]:
    return [
        {
            "file": str(problem.file) if problem.file else None,
            "line": problem.line,
            "key": problem.key,
            "message": problem.message,
            "text": str(problem),
        }
        for problem in problems
    ]

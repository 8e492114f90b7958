"""What a shell may complete: names that the configuration has, never anything of the database."""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

ASKED_BY = "_RECONCILER_COMPLETE"  #: click's variable: a shell wants completions, no command

Table = Mapping[str, Any]


def is_asked() -> bool:
    return ASKED_BY in os.environ


def by_names(command: click.Command) -> None:
    """Let the parameters of *command* that name something configured be completed."""
    for parameter in command.params:
        if parameter.name in NAMES:
            # of this one, in a process that lives for one completion
            setattr(parameter, "shell_complete", completion_of(NAMES[parameter.name]))  # noqa: B010
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            by_names(inner)


def completion_of(
    names: Callable[[Table, Table], Iterator[str]],
) -> Callable[[click.Context, str], list[CompletionItem]]:
    def complete(context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Whatever is wrong with the configuration, a shell hears nothing of it."""
        try:
            found = set(names(configured(context.params.get("config")), context.params))
        except Exception:  # noqa: BLE001 - see above
            return []
        return [CompletionItem(name) for name in sorted(found) if name.startswith(incomplete)]

    return complete


def configured(path: Path | None) -> Table:
    """The tables of the configuration as they are written; nothing is checked."""
    from reconciler.configuration import find_main

    main = find_main(Path(path) if path else None, os.environ)
    merged: dict[str, Any] = {}
    for file in (main, *sorted((main.parent / "conf.d").glob("[!.]*.toml"))):
        merge(merged, tomllib.loads(file.read_text(encoding="utf-8")))
    return merged


def merge(into: dict[str, Any], more: Table) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def senders(tables: Table, _: Table) -> Iterator[str]:
    yield from tables["senders"]


def kinds(tables: Table, given: Table) -> Iterator[str]:
    """Those of the sender that stands before, if one does."""
    for name, sender in tables["senders"].items():
        if given.get("sender") in (None, name):
            yield from sender.get("resources", {})


def destinations(tables: Table, _: Table) -> Iterator[str]:
    yield from tables["destinations"]


def effects(tables: Table, _: Table) -> Iterator[str]:
    yield from tables["effects"]


NAMES = {
    "sender": senders,
    "of_sender": senders,
    "kind": kinds,
    "destination": destinations,
    "effect": effects,
}

"""Build everything that a configuration describes; what cannot be built is said all at once."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outbox.destinations import Destination
from reconciler.errors import ConfigError, Problem
from reconciler.ledger import handlers
from reconciler.ledger.projection import KindReader, compile_kind
from reconciler.ledger.rules import Rules, compile_rules
from reconciler.operations.destinations import compile_destination
from reconciler.polling.client import Api
from reconciler.polling.sources import Sources, compile_apis, compile_sources
from reconciler.receiver.contract import SenderContract, compile_sender
from reconciler.receiver.envelope import rereader
from reconciler.settings import Loaded
from reconciler.settings.load import Examined, examine


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The configuration, compiled: what `serve` runs, and what commands work with."""

    loaded: Loaded
    contracts: Mapping[str, SenderContract]
    rules: Rules
    sources: Sources
    apis: Mapping[str, Api]
    destinations: Mapping[str, Destination]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Every (sender, kind), for birthdays and baselines."""
        return [
            (name, kind) for name, sender in self.rules.senders.items() for kind in sender.kinds
        ]

    async def aclose(self) -> None:
        """Let go of every connection to a sender or a destination."""
        for api in self.apis.values():
            await api.aclose()
        for destination in self.destinations.values():
            await destination.channel.close()


def assemble(path: Path | None = None, *, environ: Mapping[str, str] = os.environ) -> Assembly:
    """
    Load and compile the configuration at *path*, or where it is usually found.

    This is the whole of `reconciler check`, and what `serve` does first: their verdicts agree
    because they are the same. Raises ConfigError with everything that is wrong.
    """
    examined = examine(path, environ=environ)
    if examined.loaded is None:
        raise ConfigError(problems=examined.problems)
    work = _Work(examined)
    assembly = work.assemble(examined.loaded)
    if work.problems or assembly is None:
        raise ConfigError(problems=work.in_order())
    return assembly


class _Work:
    """Compiles part by part, and goes on after a part that cannot be compiled."""

    def __init__(self, examined: Examined) -> None:
        self.problems = list(examined.problems)
        self.loaded = examined.loaded

    def tried(self, build: Callable[[], Any]) -> Any:
        assert self.loaded is not None
        try:
            return build()
        except ConfigError as error:
            raw = error.problems or (Problem(key="", message=str(error)),)
            self.problems += self.loaded.place(raw)
            return None

    def assemble(self, loaded: Loaded) -> Assembly | None:
        settings = loaded.settings
        readers = {name: self.readers(name) for name in settings.senders}
        contracts = {
            name: self.tried(
                partial(compile_sender, name, settings.senders[name], loaded.secrets, readers[name])
            )
            for name in settings.senders
            if None not in readers[name].values()
        }
        destinations = {
            name: self.tried(partial(compile_destination, name, settings, loaded.secrets))
            for name in settings.destinations
        }
        marked = self.tried(lambda: handlers.load(settings.handlers, directory=loaded.path.parent))
        if marked is None or any(None in kinds.values() for kinds in readers.values()):
            return None
        rules = self.tried(
            lambda: compile_rules(settings, readers, marked, reread=rereader(contracts))
        )
        if rules is None or None in contracts.values() or None in destinations.values():
            return None
        sources = self.tried(lambda: compile_sources(settings, rules))
        apis = self.tried(lambda: compile_apis(settings, loaded.secrets))
        if sources is None or apis is None:
            return None
        return Assembly(
            loaded=loaded,
            contracts=contracts,
            rules=rules,
            sources=sources,
            apis=apis,
            destinations=destinations,
        )

    def readers(self, sender: str) -> dict[str, KindReader]:
        assert self.loaded is not None
        resources = self.loaded.settings.senders[sender].resources
        return {
            kind: self.tried(partial(compile_kind, sender, kind, resources[kind]))
            for kind in resources
        }

    def in_order(self) -> list[Problem]:
        """Every problem once, in the order of the files."""
        unique = dict.fromkeys(self.problems)
        return sorted(unique, key=lambda p: (str(p.file or ""), p.line or 0, p.key))

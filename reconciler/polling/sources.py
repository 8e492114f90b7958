"""What is read: each sender's API, and each kind's listing and `get` with what judges them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from reconciler.egress import listeners_of
from reconciler.errors import ConfigError, Problem, UsageError
from reconciler.ledger.kinds import KindRules
from reconciler.ledger.rules import Rules
from reconciler.polling.client import Api, Outside, compile_api
from reconciler.polling.listing import Getting, Listing, compile_getting, compile_listing
from reconciler.polling.slots import Mode, Slot
from reconciler.settings.models import Settings
from reconciler.settings.secrets import Secrets

Sources = Mapping[tuple[str, str], "Source"]  #: by sender and kind
Apis = Mapping[str, Api]  #: by sender


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One kind of one sender, as it is read."""

    sender: str
    kind: str
    rules: KindRules
    grace: timedelta
    listing: Listing | None
    getting: Getting | None

    def slot(self, mode: Mode) -> Slot:
        return Slot(sender=self.sender, kind=self.kind, mode=mode)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The scans that it takes: without `since` every one is full."""
        if self.listing is None:
            return ()
        return (Mode.FULL,) if self.listing.since is None else (Mode.FULL, Mode.INCREMENTAL)

    def interval(self, mode: Mode) -> timedelta:
        """How long after a completed scan the next one is due."""
        assert self.listing is not None
        whole = self.listing.since is not None and mode is Mode.FULL
        return self.listing.full_every if whole else self.listing.interval


def compile_sources(settings: Settings, rules: Rules) -> Sources:
    """Compile how each kind is read. Raises ConfigError with everything that is wrong."""
    problems: list[Problem] = []
    sources: dict[tuple[str, str], Source] = {}
    for name, sender in settings.senders.items():
        for kind, resource in sender.resources.items():
            key = f"senders.{name}.resources.{kind}"
            sources[name, kind] = Source(
                sender=name,
                kind=kind,
                rules=rules.senders[name].kinds[kind],
                grace=sender.grace,
                listing=compile_listing(resource, key, problems),
                getting=compile_getting(resource, key, problems),
            )
            if sender.api is None and (resource.list or resource.get):
                problems.append(
                    Problem(key=key, message=f"`list` and `get` need [senders.{name}.api]")
                )
    if problems:
        raise ConfigError(problems=problems)
    return sources


def compile_apis(
    settings: Settings, secrets: Secrets, *, outside: Outside | None = None
) -> dict[str, Api]:
    """Build the client of each sender that has an API; scans and reads share it."""
    listeners = listeners_of(settings)
    return {
        name: compile_api(sender.api, secrets, listeners=listeners, outside=outside)
        for name, sender in settings.senders.items()
        if sender.api is not None
    }


def source_of(sources: Sources, sender: str, kind: str) -> Source:
    """Find a kind. Raises UsageError, naming those that there are."""
    found = sources.get((sender, kind))
    if found is None:
        known = ", ".join(sorted(f"{name} {one}" for name, one in sources)) or "none"
        raise UsageError(f"no kind {kind!r} of sender {sender!r} is configured; there are: {known}")
    return found

"""Rules within a sender's kinds: what a listing, a read and a version need to work."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from reconciler.settings.documents import Finding
from reconciler.settings.models import (
    GetSettings,
    ListSettings,
    PaginationSettings,
    ResourceSettings,
    SenderSettings,
    Settings,
    TimeSpec,
    VersionSpec,
)
from reconciler.settings.positions import KeyPath

#: what each pagination style needs, and what would say nothing there
NEEDED = {
    "cursor": ("next", "param"),
    "page": ("param",),
    "offset": ("param",),
    "last_id": ("param",),
    "next_url": ("next",),
    "link": (),
}
UNUSED = {
    "cursor": (),
    "page": ("next",),
    "offset": ("next",),
    "last_id": ("next",),
    "next_url": ("param",),
    "link": ("next", "param"),
}


def check_kinds(name: str, settings: Settings) -> Iterator[Finding]:
    """Find every contradiction in the kinds of the sender *name*."""
    path: KeyPath = ("senders", name)
    sender = settings.senders[name]
    yield from _time((*path, "event", "occurred_at"), sender.event.occurred_at)
    for kind, resource in sender.resources.items():
        where: KeyPath = (*path, "resources", kind)
        yield from _resource(where, resource)
        yield from _first_seen(where, resource, settings)
        if resource.list is not None:
            yield from _list((*where, "list"), resource.list, resource)
        if resource.get is not None:
            yield from _get((*where, "get"), resource.get)
        for part in ("list", "get"):
            if getattr(resource, part) is not None and sender.api is None:
                yield Finding(
                    path=(*where, part),
                    message=f"needs to know where the API is: add [senders.{name}.api] with"
                    " base_url",
                    about=((*path, "api"),),
                )
    yield from _also_read(path, sender)


def _resource(path: KeyPath, resource: ResourceSettings) -> Iterator[Finding]:
    yield from _version((*path, "version"), resource.version)
    yield from _time((*path, "changed_at"), resource.changed_at)
    yield from _time((*path, "created_at"), resource.created_at)
    observed = isinstance(resource.version, VersionSpec) and resource.version.kind == "observed"
    for wanting, why in (
        (observed, "a kind without versions is known by reading it"),
        (resource.thin, "thin events say only that something changed"),
    ):
        if wanting and resource.get is None:
            yield Finding(path=path, message=f"{why}: it needs [{_header(path)}.get]")
    for key in ("deleted_on", "created_on"):
        for number, glob in enumerate(getattr(resource, key)):
            if not any(fnmatchcase(glob, pattern) for pattern in resource.on):
                yield Finding(
                    path=(*path, key, number),
                    message="not among the types in on: only events about this kind can say so;"
                    " add it there too",
                    about=((*path, "on"),),
                )
    if both := set(resource.deleted_on) & set(resource.created_on):
        number = resource.created_on.index(both.pop())
        yield Finding(
            path=(*path, "created_on", number),
            message="also in deleted_on: one type cannot say both",
        )


def _first_seen(path: KeyPath, resource: ResourceSettings, settings: Settings) -> Iterator[Finding]:
    if resource.list is not None or resource.first_seen is not None:
        return
    wanted = f"{path[1]}:{path[3]}"
    for name, effect in settings.effects.items():
        if any(fnmatchcase(wanted, glob) for glob in effect.on_change):
            yield Finding(
                path=(*path, "first_seen"),
                message=f"missing: this kind has no list, so nothing tells what is new from what"
                f" is merely new to us, and effects.{name} would be asked for it. Say"
                ' first_seen = "fire" (what we never saw is news) or "skip" (it is history)',
                about=((*path, "list"),),
            )
            return


def _list(path: KeyPath, listing: ListSettings, resource: ResourceSettings) -> Iterator[Finding]:
    yield from _version((*path, "version"), listing.version)
    yield from _time((*path, "changed_at"), listing.changed_at)
    yield from _time((*path, "created_at"), listing.created_at)
    if listing.pagination is not None:
        yield from _pagination((*path, "pagination"), listing.pagination)
    if listing.since is not None and not (listing.changed_at or resource.changed_at):
        yield Finding(
            path=(*path, "since"),
            message="needs changed_at: how far a scan has come is told by the sender's own"
            f' times. Add changed_at = "updated_at" (or the like) to [{_header(path)}]',
            about=((*path, "changed_at"), (*path[:-1], "changed_at")),
        )


def _get(path: KeyPath, read: GetSettings) -> Iterator[Finding]:
    yield from _version((*path, "version"), read.version)
    if "key" not in read.path or "{{" not in read.path:
        yield Finding(
            path=(*path, "path"),
            message='does not say which resource: write it like "/v1/orders/{{ key }}"',
        )


def _pagination(path: KeyPath, pages: PaginationSettings) -> Iterator[Finding]:
    for key in NEEDED[pages.style]:
        if getattr(pages, key) is None:
            what = PaginationSettings.model_fields[key].description
            yield Finding(
                path=(*path, key), message=f'missing: style = "{pages.style}" needs it: {what}'
            )
    for key in UNUSED[pages.style]:
        if getattr(pages, key) is not None:
            yield Finding(
                path=(*path, key),
                message=f'style = "{pages.style}" does not use it: remove it, or choose another'
                " style",
            )
    if pages.size_param is not None and pages.size is None:
        yield Finding(
            path=(*path, "size_param"), message="without size there is nothing to send: add size"
        )


def _version(path: KeyPath, version: str | VersionSpec | None) -> Iterator[Finding]:
    if not isinstance(version, VersionSpec):
        return
    if version.kind == "observed" and version.value is not None:
        yield Finding(
            path=(*path, "value"),
            message='kind = "observed" means that the sender has no version: remove value, or'
            ' say kind = "integer" or "timestamp"',
        )
    if version.kind != "observed" and version.value is None:
        yield Finding(
            path=(*path, "value"),
            message='missing: where the version stands; or kind = "observed" if there is none',
        )
    if version.kind != "timestamp":
        for key in ("format", "zone"):
            if key in version.model_fields_set and getattr(version, key) is not None:
                yield Finding(
                    path=(*path, key),
                    message=f'only a timestamp has it: say kind = "timestamp", or remove {key}',
                )
        return
    yield from _zone(path, version.zone, version.format)


def _time(path: KeyPath, time: str | TimeSpec | None) -> Iterator[Finding]:
    if isinstance(time, TimeSpec):
        yield from _zone(path, time.zone, time.format)


def _zone(path: KeyPath, zone: str | None, written: str) -> Iterator[Finding]:
    if zone is None:
        return
    if written != "rfc3339":
        yield Finding(
            path=(*path, "zone"), message="a count since 1970 has no zone: remove one of them"
        )
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError):
        yield Finding(path=(*path, "zone"), message='no such zone: like "UTC" or "Europe/Berlin"')


def _also_read(path: KeyPath, sender: SenderSettings) -> Iterator[Finding]:
    for number, other in enumerate(sender.also_read):
        where: KeyPath = (*path, "also_read", number, "kind")
        resource = sender.resources.get(other.kind)
        if resource is None:
            there = ", ".join(sorted(sender.resources)) or "none"
            yield Finding(
                path=where,
                message=f"no such kind of this sender; there are: {there}",
                about=((*path, "resources"),),
            )
        elif resource.get is None:
            yield Finding(
                path=where,
                message="cannot be read: that kind has no get",
                about=((*path, "resources", other.kind),),
            )


def _header(path: KeyPath) -> str:
    return ".".join(map(str, path))

"""Profiles: the shipped description of a destination, under what the operator says of theirs."""

from pathlib import Path
from typing import Any

from reconciler.data import config_directory
from reconciler.errors import ConfigError, Problem
from reconciler.settings.documents import Document, Finding, overlay, rooted
from reconciler.settings.files import read
from reconciler.settings.presets import find_preset, unknown
from reconciler.settings.values import is_reference

#: of a destination, not of a kind of destinations: who calls, and past which guard
OWN = ("profile", "kind", "bearer", "basic", "proxy", "allow_private")
#: tables whose values may be references to secrets, which are a destination's own too
MAY_REFER = ("headers", "query")


def apply_profiles(
    document: Document, *, main: Path
) -> tuple[Document, tuple[Path, ...], list[Problem]]:
    """
    Lay each destination over its profile: the destination's own values win, table by table.

    Returns the document, the profile files read, and what is wrong with profiles.
    """
    directories = (main.parent / "destinations", config_directory() / "destinations")
    files: list[Path] = []
    problems: list[Problem] = []
    destinations = document.tree.get("destinations")
    for name, destination in destinations.items() if isinstance(destinations, dict) else ():
        if not isinstance(destination, dict) or destination.get("kind", "http") != "http":
            continue  # only those have profiles: the models say so of the others
        if not isinstance(destination.get("profile"), str):
            continue
        chosen, path = destination["profile"], ("destinations", name)
        if not (file := find_preset(chosen, directories)):
            message = unknown(chosen, directories, what="profile")
            finding = Finding(path=(*path, "profile"), message=message)
            problems.append(document.problem(finding, main=main))
            # what it would have said is not missing too: this is one mistake
            document = _beneath(
                document, name, Document(tree={"base_url": "https://profile.example"})
            )
            continue
        try:
            profile = read(file)
        except ConfigError as error:
            problems += error.problems
            continue
        problems += [profile.problem(finding, main=file) for finding in _not_its_own(profile)]
        files.append(file)
        document = _beneath(document, name, without_alternatives(profile, destination))
    return document, tuple(dict.fromkeys(files)), problems


def without_alternatives(profile: Document, destination: dict[str, Any]) -> Document:
    """
    Leave out what the destination's own settings replace, though they have other names.

    The key goes into a header or into the body, and a 409 has one meaning: who says the one does
    not inherit the other. Nothing is looked up for who wants another answer to the unknown.
    """
    dropped = {key for key in OWN if key in profile.tree}  # told already, and not trusted either
    if "key_header" in destination:
        dropped.add("key_field")
    if "conflict" in destination:
        dropped |= {"done_when", "done_id"}
    if destination.get("on_uncertain", "look_up") != "look_up":
        dropped.add("look_up")
    dropped -= destination.keys() - set(OWN)
    tree = {key: value for key, value in profile.tree.items() if key not in dropped}
    return Document(tree=tree, places=profile.places)


def _not_its_own(profile: Document) -> list[Finding]:
    """What a profile says that only a destination may say."""
    paths: list[tuple[str, ...]] = [(key,) for key in OWN if key in profile.tree]
    for table in MAY_REFER:
        held = profile.tree.get(table)
        for key, value in held.items() if isinstance(held, dict) else ():
            if isinstance(value, str) and is_reference(value):
                paths.append((table, key))
    return [
        Finding(path=path, message="belongs to a destination, not to a profile") for path in paths
    ]


def _beneath(document: Document, name: str, profile: Document) -> Document:
    """Put *profile* under the destination *name*; the destinations keep their order."""
    both = overlay(rooted(("destinations", name), profile), document)
    destinations = {**document.tree["destinations"], name: both.tree["destinations"][name]}
    return Document(tree={**document.tree, "destinations": destinations}, places=both.places)

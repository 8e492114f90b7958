"""Configuration as written: trees of values that know where each of their keys was said."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reconciler.errors import Problem
from reconciler.settings.positions import KeyPath


def dotted(path: KeyPath) -> str:
    """
    Write a path as people do.

    >>> dotted(("senders", "shop", "apply", 0, "sql"))
    'senders.shop.apply[0].sql'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part.replace("-", "").replace("_", "").isalnum() and part.isascii()
            text += ("." if text else "") + (part if plain else f'"{part}"')
    return text


def undotted(text: str) -> KeyPath:
    """
    Read what `dotted` wrote.

    >>> undotted('senders.shop.apply[0].params."a b"')
    ('senders', 'shop', 'apply', 0, 'params', 'a b')
    """
    parts: list[str | int] = []
    for match in re.finditer(r'\[(\d+)\]|"([^"]*)"|([^.\["]+)', text):
        number, quoted, plain = match.groups()
        parts.append(int(number) if number else quoted if quoted is not None else plain)
    return tuple(parts)


def overlay(base: "Document", top: "Document") -> "Document":
    """Lay *top* over *base*: tables merge, everything else is replaced, its places too."""
    places = dict(base.places)
    tree = _merge(base.tree, top.tree, (), places)
    return Document(tree=tree, places=top.places | places)


def _merge(base: Any, top: Any, path: KeyPath, places: dict[KeyPath, "Place"]) -> Any:
    if not (isinstance(base, dict) and isinstance(top, dict)):
        for known in [known for known in places if known[: len(path)] == path]:
            del places[known]
        return top
    merged = dict(base)
    for key, value in top.items():
        merged[key] = _merge(base[key], value, (*path, key), places) if key in base else value
    return merged


def walk(tree: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every table, list and value of *tree*, outermost first."""
    yield path, tree
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from walk(value, (*path, number))


def rooted(path: KeyPath, document: "Document") -> "Document":
    """Move a whole *document* under the table at *path*."""
    tree = document.tree
    for part in reversed(path):
        tree = {str(part): tree}
    return Document(
        tree=tree, places={(*path, *inner): place for inner, place in document.places.items()}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something was said."""

    file: Path | None = None
    line: int | None = None
    variable: str | None = None  #: an environment variable, when no file said it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a key, before anybody has looked up where that key stands."""

    path: KeyPath
    message: str
    about: tuple[KeyPath, ...] = ()  #: other keys it rests on: if those are wrong, it says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A tree of TOML values and the places of its keys."""

    tree: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Place:
        """Where *path* was said, or the nearest table around it that was."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return Place()

    def problem(self, finding: Finding, *, main: Path | None) -> Problem:
        """Put a finding into words with its file and line; *main* where nothing was said at all."""
        place = self.place(finding.path)
        message = finding.message
        if place.variable:
            message = f"{message} (set by the environment variable {place.variable})"
            return Problem(key=dotted(finding.path), message=message)
        return Problem(
            key=dotted(finding.path), message=message, file=place.file or main, line=place.line
        )

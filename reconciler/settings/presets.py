"""Presets: the shipped description of a sender, under what the operator says about theirs."""

import difflib
import re
from pathlib import Path
from typing import Any

from reconciler.data import config_directory
from reconciler.errors import ConfigError, Problem
from reconciler.settings.documents import Document, Finding, overlay, rooted
from reconciler.settings.files import read
from reconciler.settings.models import SenderSettings

DEFAULT = SenderSettings.model_fields["preset"].default
#: of a sender, not of a kind of senders
OWN = ("preset", "secrets")


def apply_presets(
    document: Document, *, main: Path
) -> tuple[Document, tuple[Path, ...], list[Problem]]:
    """
    Lay each sender over its preset: the sender's own values win, table by table.

    Returns the document, the preset files read, and what is wrong with presets.
    """
    directories = (main.parent / "presets", config_directory() / "presets")
    files: list[Path] = []
    problems: list[Problem] = []
    senders = document.tree.get("senders")
    for name, sender in senders.items() if isinstance(senders, dict) else ():
        if not isinstance(sender, dict):
            continue
        chosen = sender.get("preset", DEFAULT)
        path = ("senders", name)
        if not (file := find_preset(chosen, directories)):
            finding = Finding(path=(*path, "preset"), message=unknown(chosen, directories))
            problems.append(document.problem(finding, main=main))
            # another one stands in, so that the rest of the sender is judged too
            file = config_directory() / "presets" / f"{DEFAULT}.toml"
        try:
            preset = read(file)
        except ConfigError as error:
            problems += error.problems
            continue
        for key in [key for key in OWN if key in preset.tree]:
            finding = Finding(path=(key,), message="belongs to a sender, not to a preset")
            problems.append(preset.problem(finding, main=file))
        files.append(file)
        preset = without_alternatives(preset, sender)
        document = _beneath(document, name, preset)
    return document, tuple(dict.fromkeys(files)), problems


def _beneath(document: Document, name: str, preset: Document) -> Document:
    """Put *preset* under the sender *name*; the senders keep their order."""
    both = overlay(rooted(("senders", name), preset), document)
    senders = {**document.tree["senders"], name: both.tree["senders"][name]}
    return Document(tree={**document.tree, "senders": senders}, places=both.places)


def without_alternatives(preset: Document, sender: dict[str, Any]) -> Document:
    """
    Leave out what the sender's own signature replaces.

    The time of signing stands in a header, or in a field of a compound one, or nowhere:
    who says where, or signs without a time, does not inherit the preset's other answer.
    """
    theirs, ours = preset.tree.get("signature"), sender.get("signature")
    if not (isinstance(theirs, dict) and isinstance(ours, dict)):
        return preset
    signed = ours.get("signed")
    untimed = isinstance(signed, str) and "timestamp" not in signed
    dropped = set()
    if "timestamp_field" in ours or untimed:
        dropped.add("timestamp_header")
    if "timestamp_header" in ours or untimed:
        dropped.add("timestamp_field")
    dropped -= ours.keys()
    tree = {**preset.tree, "signature": {k: v for k, v in theirs.items() if k not in dropped}}
    return Document(tree=tree, places=preset.places)


def find_preset(name: object, directories: tuple[Path, ...]) -> Path | None:
    """The file of the preset *name*: the operator's own before the shipped one."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        return None
    files = (directory / f"{name}.toml" for directory in directories)
    return next((file for file in files if file.is_file()), None)


def preset_names(directories: tuple[Path, ...]) -> list[str]:
    return sorted({file.stem for folder in directories for file in folder.glob("*.toml")})


def unknown(name: object, directories: tuple[Path, ...], *, what: str = "preset") -> str:
    """Say that there is none of that name, which one was probably meant, and which there are."""
    known = preset_names(directories)
    near = difflib.get_close_matches(str(name), known, n=1)
    meant = f'Did you mean "{near[0]}"? ' if near else ""
    return f"there is no such {what}. {meant}There are: {', '.join(known)}"

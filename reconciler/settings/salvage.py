"""Validate everything at once: what is wrong is set aside, so that the rest is judged too."""

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from reconciler.settings.documents import Finding
from reconciler.settings.explain import explain, field_at
from reconciler.settings.models import Settings
from reconciler.settings.positions import KeyPath
from reconciler.settings.values import Spelled

ROUNDS = 20
#: what may stand for a required value, so that the table around it can be judged
STAND_INS = ("placeholder", "/{{ key }}", "/placeholder", "POST /", ("placeholder",))


def validate(tree: dict[str, Any]) -> "Salvaged":
    """
    Validate *tree*, and once more without what is wrong with it.

    Only the first round's errors are told: later ones are about what is no longer there.
    """
    salvaged = Salvaged()
    left = deepcopy(tree)
    for _ in range(ROUNDS):
        try:
            settings = Settings.model_validate(left, by_alias=True, by_name=False)
        except ValidationError as error:
            findings = explain(error, left)
            if not salvaged.findings:
                salvaged.findings.extend(findings)
            for path in sorted({finding.path for finding in findings}, key=_last_first):
                salvaged.set_aside(left, path)
        else:
            salvaged.settings = settings
            return salvaged
    return salvaged


def _last_first(path: KeyPath) -> tuple[Any, ...]:
    """Deeper and later ones first, so that removing one moves none of the others."""
    return (-len(path), tuple((-part, "") if isinstance(part, int) else (0, part) for part in path))


def _stand_in(key: str | int, field: FieldInfo) -> object:
    kind: Any = Annotated[field.annotation, Spelled("stand-in"), *field.metadata]
    adapter = TypeAdapter[object](kind)
    for candidate in STAND_INS if key != "base_url" else ("https://placeholder.invalid",):
        with suppress(ValidationError):
            adapter.validate_python(candidate)
            return candidate
    return None


@dataclass(slots=True, kw_only=True)
class Salvaged:
    """What is left of a tree, what was wrong with it, and how the two relate."""

    settings: Settings | None = None
    findings: list[Finding] = field(default_factory=list)
    gone: set[KeyPath] = field(default_factory=set)  #: in the original's terms
    kept: dict[KeyPath, list[int]] = field(default_factory=dict)  #: a list's surviving items

    def set_aside(self, tree: dict[str, Any], path: KeyPath) -> None:
        """
        Remove *path* from *tree*.

        Where something needed is missing, a stand-in takes its place, or else the table around it
        goes. What is said about any of them later is not told.
        """
        original = self.path(path)
        inner: Any = tree
        for part in path[:-1]:
            if isinstance(inner, dict) and part not in inner:
                return  # gone with something around it
            inner = inner[part]
        last = path[-1] if path else ""
        if isinstance(inner, list) and isinstance(last, int):
            at = original[:-1] if original else path[:-1]
            self.kept.setdefault(at, list(range(len(inner))))
            del inner[last]
            del self.kept[at][last]
        elif isinstance(inner, dict) and last in inner:
            del inner[last]
        elif (field := field_at(path)) and (stand_in := _stand_in(last, field)) is not None:
            inner[last] = stand_in
        elif path:
            self.set_aside(tree, path[:-1])
            return
        self.gone.add(original or path)

    def path(self, path: KeyPath) -> KeyPath | None:
        """Translate a path of what is left into one of the original."""
        original: KeyPath = ()
        for part in path:
            survivors = self.kept.get(original)
            if survivors is not None and isinstance(part, int):
                if part >= len(survivors):
                    return None
                original = (*original, survivors[part])
            else:
                original = (*original, part)
        return original

    def original(self, finding: Finding) -> Finding | None:
        """Put a finding into the original's terms; None where it rests on what was set aside."""
        for path in (finding.path, *finding.about):
            known = self.path(path)
            if known is None or self._lost(known):
                return None
        known = self.path(finding.path)
        return replace(finding, path=known) if known is not None else None

    def _lost(self, path: KeyPath) -> bool:
        """Whether *path* lies in what was set aside, or is a list that has lost items."""
        return path in self.kept or any(path[: len(gone)] == gone for gone in self.gone)

    def rests_on_mistake(self, path: KeyPath) -> bool:
        """Whether what is wrong at *path* may only be so because something was set aside."""
        known = self.path(path) or path
        if self._lost(known) or any(gone[: len(known)] == known for gone in self.gone):
            return True
        tables = {gone[0] for gone in self.gone if len(gone) <= 2}
        kinds = {gone[0] for gone in self.gone if gone[0] == "senders" and len(gone) <= 4}
        if "destination" in path:
            return "destinations" in tables
        return bool({"on", "on_change"} & set(path)) and bool(kinds)

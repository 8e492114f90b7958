"""Overrides from the environment: `RECONCILER_SERVER__LISTEN` is `[server] listen`."""

import difflib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.sources.utils import parse_env_vars

from reconciler.settings.documents import Document, Finding, Place, walk
from reconciler.settings.models import Settings
from reconciler.settings.values import EnvironmentText

PREFIX = "RECONCILER_"
SEPARATOR = "__"

#: variables of ours that are not settings
OTHERS = ("RECONCILER_CONFIG", "RECONCILER_PG_BINDIR")
OTHERS_BEGIN = ("RECONCILER_TEST_",)


def read_environment(
    environ: Mapping[str, str], *, named: frozenset[str]
) -> tuple[Document, list[Finding]]:
    """
    Read the overrides, and find variables that look like one and are none.

    *named* are variables that the configuration itself refers to (`env:NAME`). A value that is
    a list or a table is written as JSON; one that cannot be read is left as text for the
    models to refuse.
    """
    ours = {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in {*OTHERS, *named}
        and not name.startswith(OTHERS_BEGIN)
    }
    known = {name: value for name, value in ours.items() if _section(name) in Settings.model_fields}
    findings = [_unknown(name) for name in sorted(ours.keys() - known.keys())]
    tree = _mark(Source(known)())
    places = {
        (*path, *inner): Place(variable=name)
        for name in sorted(known)
        for path in [tuple(name.removeprefix(PREFIX).lower().split(SEPARATOR))]
        for inner, _ in walk(_at(tree, path))
    }
    places |= {finding.path: Place(variable=str(finding.path[0])) for finding in findings}
    return Document(tree=tree, places=places), findings


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _section(name: str) -> str:
    return name.removeprefix(PREFIX).lower().split(SEPARATOR)[0]


def _unknown(name: str) -> Finding:
    sections = [f"{PREFIX}{section.upper()}{SEPARATOR}" for section in Settings.model_fields]
    starts = next((each for each in sections if name.startswith(each.removesuffix("_"))), None)
    near = difflib.get_close_matches(name, sections, n=1, cutoff=0.75)
    meant = [starts] if starts else near
    advice = f"; did you mean {meant[0]}...?" if meant else ""
    return Finding(
        path=(name,),
        message="no setting: they are written RECONCILER_, a section, two underscores and a key,"
        f" like RECONCILER_SERVER__LISTEN{advice}",
    )


def _mark(value: Any) -> Any:
    """Mark texts as coming from the environment, where a number has no other spelling."""
    if isinstance(value, dict):
        return {key: _mark(item) for key, item in value.items()}
    return EnvironmentText(value) if type(value) is str else value


class Overrides(BaseSettings, Settings):
    """The settings, as pydantic-settings wants to see them."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=SEPARATOR)


class Source(EnvSettingsSource):
    """pydantic-settings' reading of a given environment instead of the process's own."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(Overrides)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return parse_env_vars(self._environ, case_sensitive=False)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002
        """Read JSON exactly; what is none stays a text, and the models say what is wrong."""
        try:
            return json.loads(value, parse_float=Decimal)
        except (ValueError, RecursionError):
            return value

"""Load the configuration: files, presets, environment and secrets into one checked whole."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.configuration import find_main
from reconciler.errors import ConfigError, Problem
from reconciler.settings.consistency import check
from reconciler.settings.documents import Document, dotted, overlay, undotted
from reconciler.settings.environment import read_environment
from reconciler.settings.files import read_all
from reconciler.settings.models import Settings
from reconciler.settings.presets import apply_presets
from reconciler.settings.profiles import apply_profiles
from reconciler.settings.salvage import Salvaged, validate
from reconciler.settings.secrets import Secrets, named_variables, read_secrets


def load(path: Path | None = None, *, environ: Mapping[str, str] = os.environ) -> "Loaded":
    """
    Load the configuration at *path*, or where it is usually found.

    Raises ConfigError with everything that is wrong with it, each with file, line and key.
    """
    examined = examine(path, environ=environ)
    if examined.problems or examined.loaded is None:
        raise ConfigError(problems=examined.problems)
    return examined.loaded


def examine(path: Path | None = None, *, environ: Mapping[str, str] = os.environ) -> "Examined":
    """
    Load as much as can be understood, beside all that is wrong.

    For `check`, which goes on to compile what is left and so names those mistakes too.
    """
    try:
        main = find_main(path, environ)
        document, files = read_all(main)
    except ConfigError as error:
        return Examined(problems=error.problems or (Problem(key="", message=str(error)),))
    overrides, findings = read_environment(environ, named=named_variables(document.tree))
    document = overlay(document, overrides)
    document, presets, problems = apply_presets(document, main=main)
    document, profiles, wrong = apply_profiles(document, main=main)
    problems += wrong
    salvaged = validate(document.tree)
    findings += salvaged.findings
    secrets = Secrets({})
    if salvaged.settings is not None:
        secrets, unread = read_secrets(salvaged.settings, environ)
        found = [*check(salvaged.settings), *unread]
        findings += [each for each in map(salvaged.original, found) if each is not None]
        salvaged.gone |= {finding.path for finding in findings}
    problems += [document.problem(finding, main=main) for finding in findings]
    problems.sort(key=lambda problem: (str(problem.file or ""), problem.line or 0))
    if salvaged.settings is None:
        return Examined(problems=tuple(problems))
    loaded = Loaded(
        settings=salvaged.settings,
        secrets=secrets,
        path=main,
        files=(*files, *presets, *profiles),
        document=document,
        salvaged=salvaged,
    )
    return Examined(problems=tuple(problems), loaded=loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a configuration came to."""

    problems: tuple[Problem, ...] = ()
    loaded: "Loaded | None" = None  #: what could be understood, without what is wrong


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Loaded:
    """A configuration, the secrets that it names, and where each of its keys was said."""

    settings: Settings
    secrets: Secrets
    path: Path  #: the main file
    files: tuple[Path, ...]  #: everything that was read: main file, `conf.d`, presets, profiles
    document: Document
    salvaged: Salvaged

    def place(self, problems: Iterable[Problem]) -> list[Problem]:
        """Add file and line to problems that know only their key; drop what rests on a mistake."""
        placed = []
        for problem in problems:
            path = undotted(problem.key)
            if problem.file is not None or not path:
                placed.append(problem)
                continue
            original = self.salvaged.path(path)
            if original is None or self.salvaged.rests_on_mistake(path):
                continue
            place = self.document.place(original)
            message = problem.message
            if place.variable:
                message += f" (set by the environment variable {place.variable})"
            file = None if place.variable else place.file or self.path
            placed.append(
                replace(problem, key=dotted(original), message=message, file=file, line=place.line)
            )
        return placed

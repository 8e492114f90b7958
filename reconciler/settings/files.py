"""Finding and reading the configuration's files."""

import os
import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from reconciler.errors import ConfigError, Problem
from reconciler.settings.documents import Document, Place, dotted, overlay
from reconciler.settings.positions import find_positions, key_before

DEEPEST = 64  #: tables and lists inside each other

#: what tomllib says, and what would be right
HINTS = (
    (r"Invalid value", 'a text stands in double quotes ("5m"), booleans are true and false'),
    (r"Invalid statement|Invalid initial character", "a line is key = value or a [table] header"),
    (r"Expected '=' after a key", 'write key = "value"'),
    (r"Expected newline or end of document", 'one key a line, and texts in double quotes: "5m"'),
    (r"Cannot overwrite a value|Cannot redefine", "it is said twice in this file; keep one"),
    (r"Cannot declare|Cannot mutate", "this table is opened twice; put its keys together"),
    (r"Unclosed array|Unclosed inline", "a bracket is missing at the end"),
    (r"Unterminated|Illegal character", "a quote is missing at the end"),
    (r"Expected .\]", "a table header ends with a bracket: [senders.shop]"),
    (r"escape", r"write \\ for a backslash, or use single quotes"),
    (r"Duplicate inline table key", "it is said twice in this table; keep one"),
)  # fmt: skip


def read_all(main: Path) -> tuple[Document, tuple[Path, ...]]:
    """
    Read *main* and `conf.d/*.toml` beside it, in the order of their names.

    Raises ConfigError with the syntax errors of all of them.
    """
    beside = (main.parent / "conf.d").glob("[!.]*.toml")  # editors leave hidden files behind
    files = (main, *sorted(beside, key=lambda file: file.name))
    merged, problems = Document(), list[Problem]()
    for file in files:
        try:
            merged = overlay(merged, read(file))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems=problems)
    return merged, files


def read(file: Path) -> Document:
    """
    Read one TOML file: numbers with a point become Decimal.

    Raises ConfigError that names file and line, and key where there is one; never a value.
    """
    try:
        text = file.read_bytes().decode()
        tree = tomllib.loads(text.replace("\r\n", "\n"), parse_float=Decimal)
    except OSError as error:
        message = os.strerror(error.errno) if error.errno else "cannot be read"
        raise _unusable(file, message) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _unusable(file, "not UTF-8: save the file in that encoding", line=line) from None
    except tomllib.TOMLDecodeError as error:
        raise _broken(file, text, str(error)) from None
    except RecursionError:
        raise _unusable(file, "nested too deeply") from None
    if _is_deep(tree):
        raise _unusable(file, "nested too deeply")
    places = {path: Place(file=file, line=line) for path, line in find_positions(text).items()}
    return Document(tree=tree, places=places)


def _is_deep(tree: Any) -> bool:
    """Whether *tree* is deeper than anything that is meant; what reads it goes down by calls."""
    level = [tree]
    for _ in range(DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [one for each in inner for one in each if isinstance(one, (dict, list))]
    return bool(level)


def _broken(file: Path, text: str, said: str) -> ConfigError:
    if text.startswith("\ufeff"):
        return _unusable(file, "begins with a byte order mark: save it without", line=1)
    match = re.search(r"\(at line (\d+), column (\d+)\)$", said)
    line, column = (int(match[1]), int(match[2])) if match else (None, None)
    path, begun = key_before(text, line=line, column=column)
    what = re.sub(r" \(at .*\)$", "", said)
    if re.match(r"Illegal|Found invalid|Cannot declare|Cannot mutate", what):
        what = " ".join(what.split()[:2])  # the rest repeats the file's own text
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, said)), "see toml.io")
    message = f"not TOML: {what[:1].lower()}{what[1:]}: {hint}"
    return _unusable(file, message, line=line or begun, key=dotted(path))


def _unusable(file: Path, message: str, *, line: int | None = None, key: str = "") -> ConfigError:
    return ConfigError(problems=[Problem(key=key, message=message, file=file, line=line)])

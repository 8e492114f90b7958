"""
What can go wrong on purpose, and how a command exits on it.

ReconcilerError              1  the operation failed
├─ UsageError                2  the command line is wrong
├─ NeedsDecisionError        4  nobody is there to confirm
├─ DatabaseAwayError        69  no database within reach
│  └─ TablesGoneError       69  it is there, and our tables are not any more
├─ BusyError                75  another run or process holds it
└─ ConfigError              78  the configuration cannot be used; restarting does not help
   └─ SchemaBehindError     78  the database has not been migrated
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


class ReconcilerError(Exception):
    """Something failed that we can name; *hint* says what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(ReconcilerError):
    exit_code = 2


class NeedsDecisionError(ReconcilerError):
    exit_code = 4


class DatabaseAwayError(ReconcilerError):
    exit_code = 69


class TablesGoneError(DatabaseAwayError):
    """Tables of ours that were there are not: dropped, or a restore is putting them back."""

    def __init__(self, told: str) -> None:
        super().__init__(f"the tables are not there: is a restore under way? ({told})")


class BusyError(ReconcilerError):
    exit_code = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with the configuration: where, what, and what would be right."""

    key: str  #: dotted path, `senders.shop.grace`
    message: str  #: what is wrong and what would be right
    file: Path | None = None  #: None: from the environment, or from no place at all
    line: int | None = None  #: 1-based

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else ""
        place = f"{self.file}: " if self.file and not self.line else place
        return f"{place}{self.key}: {self.message}" if self.key else f"{place}{self.message}"


class ConfigError(ReconcilerError):
    """The configuration cannot be used. *problems* lists everything found wrong, at once."""

    exit_code = 78

    def __init__(
        self, message: str = "", *, problems: Sequence[Problem] = (), hint: str | None = None
    ) -> None:
        self.problems = tuple(problems)
        lines = [*([message] if message else []), *map(str, self.problems)]
        super().__init__("\n".join(lines), hint=hint)


class SchemaBehindError(ConfigError):
    def __init__(self, *, found: str | None, needed: str) -> None:
        super().__init__(
            f"the database is at migration {found or 'none'}, this version needs {needed}",
            hint="run `reconciler migrate`, then start the daemon again",
        )

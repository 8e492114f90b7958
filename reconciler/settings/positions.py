"""Where in a TOML file each key stands: tomllib says what a file means, this says on which line."""

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]

BARE = re.compile(r"[A-Za-z0-9_-]+")
BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
SPACE = re.compile(r"[ \t]*")
SCALAR = re.compile(r"[^,\]}#\r\n]+")
STRINGS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r'"""(?:\\.|[^\\])*?"{3,5}',
        r"'''.*?'{3,5}",
        r'"(?:\\.|[^"\\\n])*"',
        r"'[^'\n]*'",
    )
)


def find_positions(text: str) -> dict[KeyPath, int]:
    r"""
    Map every table, key and list item of a TOML *text* to its line, counted from 1.

    A broken text gives what stands before the break; tomllib is the judge of that.

    >>> find_positions('[server]\nlisten = "127.0.0.1:0"')
    {('server',): 1, ('server', 'listen'): 2}
    """
    scanner = Scanner(text=text, breaks=[match.start() for match in re.finditer("\n", text)])
    with suppress(ValueError, RecursionError):
        scanner.document()
    return scanner.lines


@dataclass(slots=True, kw_only=True)
class Scanner:
    """Reads a text once, from the left; holds how far it is and what it has found."""

    text: str
    breaks: list[int]
    at: int = 0
    lines: dict[KeyPath, int] = field(default_factory=dict)
    counts: dict[KeyPath, int] = field(default_factory=dict)  #: items of each `[[array]]`

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self.skip(BLANK)
            if self.at >= len(self.text):
                return
            line = self.line()
            if self.next_is("["):
                double = self.next_is("[[")
                self.at += 1 + double
                table = self.open(self.key(), double=double, line=line)
                self.expect("]]" if double else "]")
            else:
                self.pair(table)

    def open(self, keys: list[str], *, double: bool, line: int) -> KeyPath:
        """Enter the table of a header; the last item of an array of tables stands for it."""
        path: KeyPath = ()
        for number, key in enumerate(keys, start=1):
            path = (*path, key)
            self.lines.setdefault(path, line)
            if double and number == len(keys):
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
                self.lines.setdefault(path, line)
        return path

    def pair(self, table: KeyPath) -> None:
        line, path = self.line(), table
        for key in self.key():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.expect("=")
        self.skip(SPACE)
        self.value(path)

    def key(self) -> list[str]:
        keys = []
        while True:
            self.skip(SPACE)
            if self.next_is('"') or self.next_is("'"):
                keys.append(tomllib.loads(f"key = {self.string()}")["key"])
            else:
                keys.append(self.take(BARE))
            self.skip(SPACE)
            if not self.next_is("."):
                return keys
            self.at += 1

    def value(self, path: KeyPath) -> None:
        if self.next_is("["):
            self.items(path)
        elif self.next_is("{"):
            self.at += 1
            self.skip(BLANK)
            while not self.next_is("}"):
                self.pair(path)
                self.separator("}")
            self.at += 1
        elif self.next_is('"') or self.next_is("'"):
            self.string()
        else:
            self.take(SCALAR)

    def items(self, path: KeyPath) -> None:
        self.at += 1
        self.skip(BLANK)
        number = 0
        while not self.next_is("]"):
            self.lines[*path, number] = self.line()
            self.value((*path, number))
            self.separator("]")
            number += 1
        self.at += 1

    def separator(self, end: str) -> None:
        self.skip(BLANK)
        if not self.next_is(end):
            self.expect(",")
            self.skip(BLANK)

    def string(self) -> str:
        for pattern in STRINGS:
            if match := pattern.match(self.text, self.at):
                self.at = match.end()
                return match[0]
        raise ValueError

    def next_is(self, start: str) -> bool:
        return self.text.startswith(start, self.at)

    def expect(self, token: str) -> None:
        self.skip(SPACE)
        if not self.next_is(token):
            raise ValueError
        self.at += len(token)

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def take(self, pattern: re.Pattern[str]) -> str:
        if not (match := pattern.match(self.text, self.at)):
            raise ValueError
        self.at = match.end()
        return match[0]

    def line(self) -> int:
        return bisect_right(self.breaks, self.at - 1) + 1

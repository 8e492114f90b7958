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
    return scan(text).lines


def key_before(text: str, *, line: int | None, column: int | None) -> tuple[KeyPath, int]:
    """The key that was being read at a place of a broken *text* (None: its end), and its line."""
    scanner = scan(text)
    place = len(text)
    if line is not None and column is not None:
        place = [0, *(each + 1 for each in scanner.breaks)][line - 1] + column - 1
    before = [(path, at) for path, at in scanner.seen if at < place]
    path, at = before[-1] if before else ((), 0)
    return path, scanner.line(at)


def scan(text: str) -> "Scanner":
    scanner = Scanner(text=text, breaks=[match.start() for match in re.finditer("\n", text)])
    with suppress(ValueError, RecursionError):
        scanner.document()
    return scanner


@dataclass(slots=True, kw_only=True)
class Scanner:
    """Reads a text once, from the left; holds how far it is and what it has found."""

    text: str
    breaks: list[int]
    at: int = 0
    lines: dict[KeyPath, int] = field(default_factory=dict)
    seen: list[tuple[KeyPath, int]] = field(default_factory=list)  #: keys as they came, and where
    counts: dict[KeyPath, int] = field(default_factory=dict)  #: items of each `[[array]]`

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self.skip(BLANK)
            if self.at >= len(self.text):
                return
            if self.next_is("["):
                start = self.at
                double = self.next_is("[[")
                self.at += 1 + double
                table = self.open(self.key(), double=double, start=start)
                self.expect("]]" if double else "]")
            else:
                self.pair(table)

    def open(self, keys: list[str], *, double: bool, start: int) -> KeyPath:
        """Enter the table of a header; the last item of an array of tables stands for it."""
        path: KeyPath = ()
        line = self.line(start)
        for number, key in enumerate(keys, start=1):
            path = (*path, key)
            self.lines.setdefault(path, line)
            if double and number == len(keys):
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
                self.lines.setdefault(path, line)
        self.seen.append((path, start))
        return path

    def pair(self, table: KeyPath) -> None:
        start, path = self.at, table
        for key in self.key():
            path = (*path, key)
            self.lines.setdefault(path, self.line(start))
        self.seen.append((path, start))
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
            self.lines[*path, number] = self.line(self.at)
            self.seen.append(((*path, number), self.at))
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

    def line(self, at: int) -> int:
        return bisect_right(self.breaks, at - 1) + 1

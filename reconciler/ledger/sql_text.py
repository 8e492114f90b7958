"""Finding `:names` in a user's SQL, past strings, quotes, comments and casts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.errors import ReconcilerError

#: PostgreSQL, "Lexical Structure". A name is only one where a value could stand: not after
#: another colon (`a::int`), nor after a letter, a digit or a closing bracket (`xs[1:n]`).
PIECES = re.compile(
    r"""
      (?P<string>   (?:\b[eE])'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' )
    | (?P<quoted>   "(?:[^"]|"")*" )
    | (?P<dollar>   (?<![\w$]) \$(?P<tag>(?:[^\W\d]\w*)?)\$ .*? \$(?P=tag)\$ )
    | (?P<numbered> (?<![\w$]) \$\d+ )
    | (?P<comment>  --[^\n]* )
    | (?P<block>    /\* )
    | (?P<cast>     :: | := )
    | (?P<name>     (?<![\w\])]) :[A-Za-z_]\w* )
    | (?P<end>      ; )
    | (?P<word>     [^\W\d][\w$]* )
    | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)

STATEMENTS = ("INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "WITH")


def read_statement(sql: str) -> Statement:
    """
    Take one statement apart.

    Raises SqlTextError where it is none, more than one, or one that does not belong inside our
    transaction (COMMIT, SET, COPY ...).
    """
    pieces: list[Piece] = []
    ended = False
    first: str | None = None
    for kind, text in tokens(sql):
        match kind:
            case "comment":
                pieces.append(Piece(text=" "))
                continue
            case "end":
                ended = True
                continue
            case "numbered":
                raise SqlTextError(f"{text} is not a parameter here: write a :name")
            case "other" if text.isspace():
                pieces.append(Piece(text=text))
                continue
        if ended:
            raise SqlTextError("one statement only: write a second [[apply]] for the next")
        if first is None and text != "(":
            first = text.upper()
        pieces.append(Piece(text=text, name=text[1:] if kind == "name" else None))
    if first not in STATEMENTS:
        raise SqlTextError(
            f"the statement must be one of {', '.join(STATEMENTS)}"
            + (f", not {first}" if first else "; it is empty")
            + " (it runs inside our transaction, which it must neither end nor reconfigure)"
        )
    return Statement(pieces=tuple(pieces))


def tokens(sql: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of each piece; comments come as one piece, nested ones too."""
    position = 0
    while position < len(sql):
        found = PIECES.match(sql, position)
        assert found is not None
        kind = found.lastgroup or "other"
        if kind == "block":
            end = end_of_comment(sql, position)
            yield "comment", sql[position:end]
            position = end
            continue
        if kind == "other" and found[0] in "'\"":
            raise SqlTextError(f"a {found[0]} is opened and never closed")
        yield kind, found[0]
        position = found.end()


def end_of_comment(sql: str, start: int) -> int:
    depth = 0
    for found in re.compile(r"/\*|\*/").finditer(sql, start):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    raise SqlTextError("a comment is opened with /* and never closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    text: str
    name: str | None = None  #: of the parameter that stands here


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement whose parameters are known."""

    pieces: tuple[Piece, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in the order of their places; a name used twice is there twice."""
        return tuple(piece.name for piece in self.pieces if piece.name is not None)

    def for_driver(self) -> str:
        """With `%s` in each place, and every other percent sign doubled."""
        return "".join(
            piece.text.replace("%", "%%") if piece.name is None else "%s" for piece in self.pieces
        ).strip()

    def numbered(self) -> str:
        """With `$1`, `$2` ... in each place, as PREPARE takes it."""
        number = 0
        parts: list[str] = []
        for piece in self.pieces:
            number += piece.name is not None
            parts.append(piece.text if piece.name is None else f"${number}")
        return "".join(parts).strip()

    def for_sqlalchemy(self) -> str:
        """As `sqlalchemy.text` reads it: every colon that starts no parameter is escaped."""
        return "".join(
            piece.text.replace(":", r"\:") if piece.name is None else piece.text
            for piece in self.pieces
        ).strip()


class SqlTextError(ReconcilerError):
    """A text that cannot be run as one statement; says why."""

"""Expressions, and texts, paths and JSON with `{{ expressions }}` in them, ready to be used."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from urllib.parse import quote

from jinja2 import nodes

from reconciler.exact_json import Json, NotJsonError, require_json
from reconciler.expressions import meaning
from reconciler.expressions.errors import ExpressionError, ExpressionSyntaxError, MeaningError
from reconciler.expressions.parsing import parse_expression, parse_template
from reconciler.expressions.syntax import Builder, Lookup, Path

_FAILURES = (MeaningError, NotJsonError, ArithmeticError, RecursionError, UnicodeError)
_STATIC_PATH = re.compile(r"[!$&'()*+,\-./0-9:;=?@A-Z_a-z~\[\]%]*", re.ASCII)


@lru_cache(maxsize=4096)
def compile_expression(
    source: str, *, names: frozenset[str] | None = None, root: str | None = None
) -> "Expression":
    """
    Compile one expression of the configuration.

    *names* are the names that it may use, found in the context by those names. None: the
    context is an object, and every name is a member of it. With *root*, any further name is a
    member of the context's member of that name (`root="body"`: `id` is `body.id`).

    Raises ExpressionSyntaxError for what is wrong as it is written: also for unknown names,
    filters and tests, floats, calls.

    >>> compile_expression("data.amount / 100").value({"data": {"amount": 1230}})
    Decimal('12.3')
    """
    tree = parse_expression(source)
    return _expression(tree, source=source, names=names, root=root)


@lru_cache(maxsize=4096)
def compile_template(
    text: str, *, names: frozenset[str] | None = None, root: str | None = None
) -> "Template":
    """
    Compile a text with `{{ expressions }}`; names and errors as in `compile_expression`.

    Line endings of the text become line feeds; statements and comments are refused.
    """
    pieces = [
        piece if isinstance(piece, str) else _expression(piece, source=text, names=names, root=root)
        for piece in parse_template(text)
    ]
    return Template(source=text, pieces=tuple(pieces))


@lru_cache(maxsize=4096)
def compile_path(
    text: str, *, names: frozenset[str] | None = None, root: str | None = None
) -> "PathTemplate":
    """
    Compile a URL path, with or without a query: `/v1/orders/{{ key }}?expand=lines`.

    What stands in `{{ }}` is percent-encoded whole, so it can neither add a piece to the path nor
    a parameter to the query.
    """
    template = compile_template(text, names=names, root=root)
    static = "".join("x" if isinstance(piece, Expression) else piece for piece in template.pieces)
    if not static.startswith("/"):
        raise ExpressionSyntaxError(text, "a path begins with /")
    if not _STATIC_PATH.fullmatch(static):
        raise ExpressionSyntaxError(
            text, "a character in it has no place in a URL", hint="percent-encode it: %20 for space"
        )
    _check_segments(static, lambda reason: ExpressionSyntaxError(text, reason))
    return PathTemplate(source=text, template=template)


def compile_json(
    value: object, *, names: frozenset[str] | None = None, root: str | None = None
) -> "JsonTemplate":
    """
    Compile a JSON value, any text of which may hold `{{ expressions }}`.

    A text that is exactly one `{{ expression }}` becomes what the expression comes to, with its
    type; every other text stays a text. The names of members are taken as they are.

    >>> compile_json({"n": "{{ n }}", "t": "no {{ n }}"}).value({"n": 7})
    {'n': 7, 't': 'no 7'}
    """
    used: set[str] = set()
    paths: set[Path] = set()

    def build(value: object, place: str) -> Lookup:
        if isinstance(value, str):
            template = compile_template(value, names=names, root=root)
            used.update(template.names)
            paths.update(template.paths)
            return template.typed
        if isinstance(value, Mapping):
            members = [
                (_member_name(name, place), build(member, f"{place}.{name}"))
                for name, member in value.items()
            ]
            return lambda context: {name: member(context) for name, member in members}
        if isinstance(value, list | tuple):
            items = [build(item, f"{place}[{at}]") for at, item in enumerate(value)]
            return lambda context: [item(context) for item in items]
        constant = _constant(value, place)
        return lambda _: constant

    evaluate = build(value, "")
    return JsonTemplate(evaluate=evaluate, names=frozenset(used), paths=frozenset(paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """One expression, ready to be evaluated over any number of contexts, in any thread."""

    source: str
    names: frozenset[str]  #: names that it uses; `root` where members of it are used
    paths: frozenset[Path]  #: paths from the context that it reads, as far as they are constant
    path: Path | None  #: its path, where it is nothing else
    evaluate: Lookup

    def value(self, context: Json) -> Json:
        """Return what it comes to; null for what is missing. Raises ExpressionError."""
        try:
            return self.evaluate(context)
        except _FAILURES as error:
            raise ExpressionError(self.source, _reason(error)) from None

    def truth(self, context: Json) -> bool:
        """Return true or false, false for null. Raises ExpressionError for anything else."""
        value = self.value(context)
        if value is None or isinstance(value, bool):
            return value is True
        reason = f"it comes to {meaning.describe(value)}, not to true or false"
        raise ExpressionError(self.source, reason)

    def text(self, context: Json) -> str:
        """Return what it comes to as a text. Raises ExpressionError, also for null."""
        try:
            return meaning.text_of(self.evaluate(context))
        except _FAILURES as error:
            raise ExpressionError(self.source, _reason(error)) from None

    def reads_missing(self, context: Json) -> bool:
        """Tell whether something that it reads is not there at all (null is there)."""
        return not all(meaning.has(context, path) for path in self.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A text with expressions."""

    source: str
    pieces: tuple[str | Expression, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset[str]().union(*(piece.names for piece in _expressions(self.pieces)))

    @property
    def paths(self) -> frozenset[Path]:
        return frozenset[Path]().union(*(piece.paths for piece in _expressions(self.pieces)))

    def text(self, context: Json) -> str:
        """Write it; null, objects and lists are errors. Raises ExpressionError."""
        written = "".join(
            piece if isinstance(piece, str) else piece.text(context) for piece in self.pieces
        )
        try:
            return meaning.check_text(written)
        except MeaningError as error:
            raise ExpressionError(self.source, str(error)) from None

    def typed(self, context: Json) -> Json:
        """Return the value, with its type, of what is exactly one expression; else the text."""
        match self.pieces:
            case (Expression() as only,):
                return only.value(context)
            case _:
                return self.text(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTemplate:
    """A URL path with expressions."""

    source: str
    template: Template

    @property
    def names(self) -> frozenset[str]:
        return self.template.names

    @property
    def paths(self) -> frozenset[Path]:
        return self.template.paths

    def text(self, context: Json) -> str:
        """Write it; empty pieces, `.` and `..` are errors. Raises ExpressionError."""
        written: list[str] = []
        for piece in self.template.pieces:
            if isinstance(piece, Expression):
                text = piece.text(context)
                if not text:
                    raise ExpressionError(self.source, "a piece of the path is empty")
                written.append(_quoted(text, self.source))
            else:
                written.append(piece)
        path = "".join(written)
        _check_segments(path, lambda reason: ExpressionError(self.source, reason))
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonTemplate:
    """A JSON value with expressions."""

    evaluate: Lookup
    names: frozenset[str]
    paths: frozenset[Path]

    def value(self, context: Json) -> Json:
        """Return the value. Raises ExpressionError."""
        return self.evaluate(context)


def _expression(
    tree: nodes.Expr, *, source: str, names: frozenset[str] | None, root: str | None
) -> Expression:
    builder = Builder(source=source, names=names, root=root)
    evaluate = builder.build(tree)
    return Expression(
        source=source,
        names=frozenset(builder.used),
        paths=frozenset(builder.paths),
        path=builder.path_of(tree),
        evaluate=evaluate,
    )


def _expressions(pieces: tuple[str | Expression, ...]) -> list[Expression]:
    return [piece for piece in pieces if isinstance(piece, Expression)]


def _member_name(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise ExpressionSyntaxError(place, "the names of members are texts")
    if "{{" in name:
        raise ExpressionSyntaxError(name, "the name of a member cannot be an expression")
    return name


def _constant(value: object, place: str) -> Json:
    if isinstance(value, float):  # as TOML reads it; its shortest text is what was written
        value = Decimal(repr(value))
    try:
        return require_json(value)
    except NotJsonError as error:
        raise ExpressionSyntaxError(
            place.lstrip("."), error.reason, hint="put it into quotes"
        ) from None


def _check_segments(path: str, error: Callable[[str], ExpressionError]) -> None:
    # %2e is a dot to most servers; only static text can hold it, what is filled in has %252e.
    segments = path.partition("?")[0].lower().replace("%2e", ".").split("/")
    if "." in segments or ".." in segments:
        raise error("`.` and `..` are no pieces of a path")
    if "" in segments[1:-1]:
        raise error("a piece of the path is empty")


def _quoted(text: str, source: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ExpressionError(source, "it holds half of a surrogate pair") from None


def _reason(error: Exception) -> str:
    match error:
        case MeaningError():
            return str(error)
        case NotJsonError():
            return error.reason
        case _:  # in their own words, they could repeat a value
            return f"it cannot be worked out ({type(error).__name__})"

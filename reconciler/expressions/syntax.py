"""From Jinja2's syntax tree to functions that look things up in JSON and can do nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jinja2 import nodes

from reconciler.exact_json import MAX_DIGITS, Json, same
from reconciler.expressions import meaning
from reconciler.expressions.currencies import EXPONENTS
from reconciler.expressions.errors import ExpressionSyntaxError
from reconciler.expressions.filters import FILTERS, TESTS, Filter
from reconciler.expressions.names import nearest
from reconciler.expressions.parsing import UNSTORABLE

Lookup = Callable[[Json], Json]
"""From the context to the value."""

Path = tuple[Json, ...]
"""The names and positions that lead from the context to a value."""

_MAX_LEVELS = 100  #: operators inside each other
_BINARY: Mapping[type[nodes.BinExpr], Callable[[Json, Json], Json]] = {
    nodes.Add: meaning.add,
    nodes.Sub: meaning.subtract,
    nodes.Mul: meaning.multiply,
    nodes.Div: meaning.divide,
    nodes.FloorDiv: meaning.floor_divide,
    nodes.Mod: meaning.modulo,
    nodes.Pow: meaning.power,
}
_UNARY: Mapping[type[nodes.UnaryExpr], Callable[[Json], Json]] = {
    nodes.Not: lambda value: not value,
    nodes.Neg: meaning.negate,
    nodes.Pos: meaning.affirm,
}
_COMPARISONS: Mapping[str, Callable[[Json, Json], bool]] = {
    "eq": same,
    "ne": lambda one, other: not same(one, other),
    "lt": lambda one, other: meaning.less(one, other, or_equal=False),
    "lteq": lambda one, other: meaning.less(one, other, or_equal=True),
    "gt": lambda one, other: meaning.less(other, one, or_equal=False),
    "gteq": lambda one, other: meaning.less(other, one, or_equal=True),
    "in": lambda one, other: meaning.contains(other, one),
    "notin": lambda one, other: not meaning.contains(other, one),
}


@dataclass(slots=True, kw_only=True)
class Builder:
    """Turns the tree of one source into a function, and gathers what it reads."""

    source: str
    names: frozenset[str] | None  #: allowed names; None: any, they are members of the context
    root: str | None = None  #: the name whose members all other names are
    used: set[str] = field(default_factory=set)
    paths: set[Path] = field(default_factory=set)
    level: int = 0

    def build(self, node: nodes.Node) -> Lookup:
        self.level += 1
        if self.level > _MAX_LEVELS:
            raise self.wrong("it is too deep")
        try:
            path = self.path_of(node)
            if path is not None:
                self.paths.add(path)
                return _walk(path)
            if isinstance(node, nodes.Call):
                raise self.wrong(
                    "there are no functions or methods",
                    hint="`|` applies a filter: {{ name|lower }}, not {{ name.lower() }}",
                )
            if type(node) not in _BUILDERS:
                raise self.wrong(f"{type(node).__name__} is not part of the language")
            return _BUILDERS[type(node)](self, node)
        finally:
            self.level -= 1

    def path_of(self, node: nodes.Node) -> Path | None:
        """Return the path of an expression that is nothing but one: `data.items[0].id`."""
        steps: list[str | int] = []
        while len(steps) <= _MAX_LEVELS:
            match node:
                case nodes.Name(name=name):
                    return (*self._named(name), *reversed(steps))
                case nodes.Getattr(node=inner, attr=attr):
                    node = inner
                    steps.append(attr)
                case nodes.Getitem(node=inner, arg=nodes.Const(value=str() | int() as step)):
                    node = inner
                    steps.append(step)
                case _:
                    return None
        raise self.wrong("it is too deep")

    def wrong(self, reason: str, *, hint: str | None = None) -> ExpressionSyntaxError:
        return ExpressionSyntaxError(self.source, reason, hint=hint)

    def _named(self, name: str) -> Path:
        if self.names is None or name in self.names:
            self.used.add(name)
            return (name,)
        if self.root is not None:
            self.used.add(self.root)
            return (self.root, name)
        raise self.wrong(f"unknown name {name!r}: {nearest(name, self.names)}")


def _constant(builder: Builder, node: nodes.Const) -> Lookup:
    value = node.value
    if isinstance(value, float):
        raise builder.wrong(
            f"{value!r} would be a float, which is not exact", hint=f"write '{value!r}'|decimal"
        )
    if isinstance(value, str) and UNSTORABLE.search(value):
        raise builder.wrong("a text in it holds NUL or half of a surrogate pair")
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise builder.wrong(f"a number in it has more than {MAX_DIGITS} digits")
    return lambda _: value


def _list(builder: Builder, node: nodes.List | nodes.Tuple) -> Lookup:
    items = [builder.build(item) for item in node.items]
    return lambda context: [item(context) for item in items]


def _object(builder: Builder, node: nodes.Dict) -> Lookup:
    members: list[tuple[str, Lookup]] = []
    for pair in node.items:
        if not isinstance(pair.key, nodes.Const) or not isinstance(pair.key.value, str):
            raise builder.wrong("the names of an object's members are constant texts")
        _constant(builder, pair.key)
        members.append((pair.key.value, builder.build(pair.value)))
    return lambda context: {name: value(context) for name, value in members}


def _member(builder: Builder, node: nodes.Getattr) -> Lookup:
    holder, name = builder.build(node.node), node.attr
    return lambda context: meaning.member(holder(context), name)


def _item(builder: Builder, node: nodes.Getitem) -> Lookup:
    if isinstance(node.arg, nodes.Slice):
        return _cut(builder, node.node, node.arg)
    holder, key = builder.build(node.node), builder.build(node.arg)
    return lambda context: meaning.member(holder(context), key(context))


def _cut(builder: Builder, inner: nodes.Expr, cut: nodes.Slice) -> Lookup:
    if cut.step is not None:
        raise builder.wrong("a cut has a start and a stop, no step")
    value = builder.build(inner)
    start = builder.build(cut.start) if cut.start else _null
    stop = builder.build(cut.stop) if cut.stop else _null
    return lambda context: meaning.part(value(context), start(context), stop(context))


def _chosen(builder: Builder, node: nodes.CondExpr) -> Lookup:
    test, then = builder.build(node.test), builder.build(node.expr1)
    instead = builder.build(node.expr2) if node.expr2 else _null
    return lambda context: then(context) if test(context) else instead(context)


def _and(builder: Builder, node: nodes.And) -> Lookup:
    left, right = builder.build(node.left), builder.build(node.right)
    return lambda context: left(context) and right(context)


def _or(builder: Builder, node: nodes.Or) -> Lookup:
    left, right = builder.build(node.left), builder.build(node.right)
    return lambda context: left(context) or right(context)


def _unary(builder: Builder, node: nodes.UnaryExpr) -> Lookup:
    operate, value = _UNARY[type(node)], builder.build(node.node)
    return lambda context: operate(value(context))


def _binary(builder: Builder, node: nodes.BinExpr) -> Lookup:
    operate, left, right = _BINARY[type(node)], builder.build(node.left), builder.build(node.right)
    return lambda context: operate(left(context), right(context))


def _concatenated(builder: Builder, node: nodes.Concat) -> Lookup:
    pieces = [builder.build(piece) for piece in node.nodes]
    return lambda context: meaning.check_text(
        "".join(meaning.text_of(piece(context)) for piece in pieces)
    )


def _compared(builder: Builder, node: nodes.Compare) -> Lookup:
    first = builder.build(node.expr)
    steps = [(_COMPARISONS[step.op], builder.build(step.expr)) for step in node.ops]

    def compared(context: Json) -> Json:
        one = first(context)
        for compare, operand in steps:  # 1 < x < 5
            other = operand(context)
            if not compare(one, other):
                return False
            one = other
        return True

    return compared


def _applied(builder: Builder, node: nodes.Filter | nodes.Test) -> Lookup:
    what, known = ("filter", FILTERS) if isinstance(node, nodes.Filter) else ("test", TESTS)
    if node.name not in known:
        raise builder.wrong(f"unknown {what} {node.name!r}: {nearest(node.name, known)}")
    if node.node is None or node.dyn_args or node.dyn_kwargs:
        raise builder.wrong(f"`{node.name}` takes its arguments one by one")
    spec = known[node.name]
    value = builder.build(node.node)
    given = _arguments(builder, node, spec)
    if not given:
        return lambda context: spec.run(value(context))
    return lambda context: spec.run(
        value(context), **{name: argument(context) for name, argument in given.items()}
    )


def _arguments(
    builder: Builder, node: nodes.Filter | nodes.Test, spec: Filter
) -> dict[str, Lookup]:
    takes = ", ".join(spec.parameters) or "nothing"
    if len(node.args) > len(spec.parameters):
        raise builder.wrong(f"`{node.name}` takes {takes}")
    given: dict[str, nodes.Node] = dict(zip(spec.parameters, node.args, strict=False))
    for pair in node.kwargs:
        name = str(pair.key)  # Jinja2's parser makes these of type Keyword: the key is a text
        if name not in spec.parameters or name in given:
            raise builder.wrong(f"`{node.name}` takes {takes}")
        given[name] = pair.value
    if len(given) < spec.required:
        raise builder.wrong(f"`{node.name}` needs {takes}")
    currency = given.get("currency")
    if isinstance(currency, nodes.Const) and str(currency.value).upper() not in EXPONENTS:
        raise builder.wrong(f"{currency.value!r} is no currency code of ISO 4217")
    return {name: builder.build(argument) for name, argument in given.items()}


def _walk(path: Path) -> Lookup:
    if len(path) == 1 and isinstance(name := path[0], str):
        return lambda context: (
            context.get(name) if type(context) is dict else meaning.member(context, name)
        )

    def walk(context: Json) -> Json:
        value = context
        for step in path:
            # Nearly always an object, and this stands on the receiver's hot path.
            value = value.get(step) if type(value) is dict else meaning.member(value, step)
        return value

    return walk


def _null(_: Json) -> Json:
    return None


_BUILDERS: Mapping[type[nodes.Node], Callable[..., Lookup]] = {
    nodes.Const: _constant,
    nodes.List: _list,
    nodes.Tuple: _list,
    nodes.Dict: _object,
    nodes.Getattr: _member,
    nodes.Getitem: _item,
    nodes.CondExpr: _chosen,
    nodes.And: _and,
    nodes.Or: _or,
    nodes.Concat: _concatenated,
    nodes.Compare: _compared,
    nodes.Filter: _applied,
    nodes.Test: _applied,
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
}

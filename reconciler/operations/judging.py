"""Expressions over answers, as the relay asks them."""

from collections.abc import Mapping

from outbox.verdict import Marker, Naming
from reconciler.exact_json import Json
from reconciler.expressions import CaseInsensitive, Expression, ExpressionError, PlainText


class Judging:
    """
    An expression over an answer, as the relay asks it: status, headers, body read as JSON.

    Raises ExpressionError where it cannot be decided. So it is where it looks for members in a
    body that is no JSON, unless it knows such bodies, by naming the whole, and holds.
    """

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.knows_texts = ("body",) in expression.paths

    def __call__(self, status: int, headers: Mapping[str, str], body: Json) -> bool:
        if not isinstance(body, str):
            return self.expression.truth(_names(status, headers, body))
        try:
            return self.expression.truth(_names(status, headers, PlainText(body)))
        except ExpressionError:
            if self.knows_texts and self.expression.truth(_names(status, headers, body)):
                return True
            raise


def marking(expression: Expression) -> Marker:
    """An expression over status and headers alone."""
    judge = Judging(expression)
    return lambda status, headers: judge(status, headers, None)


def naming(expression: Expression) -> Naming:
    """An expression that comes to a text, or to null where the answer has none."""

    def name(status: int, headers: Mapping[str, str], body: Json) -> str | None:
        context = _names(status, headers, body)
        return None if expression.value(context) is None else expression.text(context)

    return name


def _names(status: int, headers: Mapping[str, str], body: Json) -> dict[str, Json]:
    return {"status": status, "headers": CaseInsensitive(headers), "body": body}

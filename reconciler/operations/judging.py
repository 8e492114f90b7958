"""Expressions over answers, as the relay asks them."""

from collections.abc import Mapping

from reconciler.exact_json import Json
from reconciler.expressions import CaseInsensitive, Expression


class Judging:
    """An expression over an answer, as the relay asks it: status, headers, body read as JSON."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def __call__(self, status: int, headers: Mapping[str, str], body: Json) -> bool:
        context: dict[str, Json] = {
            "status": status,
            "headers": CaseInsensitive(headers),
            "body": body,
        }
        return self.expression.truth(context)

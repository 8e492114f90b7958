"""
The one expression and template language of the configuration.

The syntax is Jinja2's, and Jinja2 parses it; the meaning is ours, because there is less of it: `.`
and `[]` look up members of objects and items of lists and nothing else, missing and null are one,
numbers are int or Decimal, no function can be called, and nothing takes long or grows large.
"""

from reconciler.expressions.errors import ExpressionError, ExpressionSyntaxError
from reconciler.expressions.filters import FILTERS, TESTS
from reconciler.expressions.meaning import PlainText
from reconciler.expressions.names import (
    ANSWER_NAMES,
    BECOMES_NAMES,
    DELIVERED_NAMES,
    EFFECT_NAMES,
    ENVELOPE_NAMES,
    HANDSHAKE_NAMES,
    LOOK_UP_NAMES,
    PATH_NAMES,
    CaseInsensitive,
    nearest,
)
from reconciler.expressions.templates import (
    Expression,
    JsonTemplate,
    PathTemplate,
    Template,
    compile_expression,
    compile_json,
    compile_path,
    compile_template,
)

__all__ = [
    "ANSWER_NAMES",
    "BECOMES_NAMES",
    "DELIVERED_NAMES",
    "EFFECT_NAMES",
    "ENVELOPE_NAMES",
    "FILTERS",
    "HANDSHAKE_NAMES",
    "LOOK_UP_NAMES",
    "PATH_NAMES",
    "TESTS",
    "CaseInsensitive",
    "Expression",
    "ExpressionError",
    "ExpressionSyntaxError",
    "JsonTemplate",
    "PathTemplate",
    "PlainText",
    "Template",
    "compile_expression",
    "compile_json",
    "compile_path",
    "compile_template",
    "nearest",
]

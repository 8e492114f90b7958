"""Jinja2 reads the text; nothing of it is ever run."""

import re

from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from reconciler.expressions.errors import ExpressionSyntaxError

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  #: what PostgreSQL takes in no text

_STATEMENTS = {"block_begin", "comment_begin", "raw_begin"}


def parse_expression(source: str) -> nodes.Expr:
    """Parse one expression; raises ExpressionSyntaxError."""
    if source.lstrip().startswith("{{"):
        raise ExpressionSyntaxError(source, "an expression stands by itself, without {{ }}")
    try:
        parser = Parser(_JINJA, source, state="variable")
        tree = parser.parse_expression()
    except TemplateSyntaxError as error:
        raise ExpressionSyntaxError(source, _sentence(error)) from None
    except (RecursionError, ValueError):
        raise ExpressionSyntaxError(source, "it is too deep, or a number in it too long") from None
    if not parser.stream.eos:
        if parser.stream.current.type == "assign":
            raise ExpressionSyntaxError(source, "nothing is assigned here: `==` compares")
        raise ExpressionSyntaxError(source, "something follows after the expression")
    return tree


def parse_template(text: str) -> list[str | nodes.Expr]:
    """Parse a text into what stands in it and its `{{ expressions }}`; the same errors."""
    try:
        for _, token, _ in _JINJA.lexer.tokeniter(text, None):
            if token in _STATEMENTS:
                raise ExpressionSyntaxError(
                    text,
                    "only {{ expressions }} may stand in a text, no statements or comments",
                    hint="write {{ '{%' }} or {{ '{#' }} for these characters themselves",
                )
        tree = _JINJA.parse(text)
    except TemplateSyntaxError as error:
        raise ExpressionSyntaxError(text, _sentence(error)) from None
    except (RecursionError, ValueError):
        raise ExpressionSyntaxError(text, "it is too deep, or a number in it too long") from None
    pieces: list[str | nodes.Expr] = []
    for output in tree.find_all(nodes.Output):
        pieces += [
            node.data if isinstance(node, nodes.TemplateData) else node for node in output.nodes
        ]
    for piece in pieces:
        if isinstance(piece, nodes.Tuple):
            raise ExpressionSyntaxError(text, "{{ }} holds one expression, not several")
        if isinstance(piece, str) and UNSTORABLE.search(piece):
            raise ExpressionSyntaxError(text, "it holds NUL or half of a surrogate pair")
    return pieces


def _sentence(error: TemplateSyntaxError) -> str:
    return (error.message or "it cannot be read").rstrip(".")


_JINJA = ImmutableSandboxedEnvironment(keep_trailing_newline=True, cache_size=0)
_JINJA.globals.clear()

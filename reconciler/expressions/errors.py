"""What can be wrong with an expression: as it is written, or over what it meets."""

from reconciler.errors import ReconcilerError

_SHOWN = 200  #: characters of a source that an error repeats


class ExpressionError(ReconcilerError):
    """
    An expression comes to nothing usable.

    *source* is the configuration's text, *reason* says what is wrong; neither holds any value
    that the expression met.
    """

    def __init__(self, source: str, reason: str, *, hint: str | None = None) -> None:
        shown = source if len(source) <= _SHOWN else source[:_SHOWN] + "..."
        super().__init__(f"{shown!r}: {reason}", hint=hint)
        self.source = source
        self.reason = reason


class ExpressionSyntaxError(ExpressionError):
    """An expression is wrong as it is written; found when the configuration is read."""


class MeaningError(Exception):
    """An operation has no meaning over these values; `Expression` adds the source."""

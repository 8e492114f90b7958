"""What can go wrong when a sender's API is read, told apart by what must follow."""

from datetime import timedelta

from reconciler.errors import ReconcilerError

NOT_ABOUT_THE_REQUEST = frozenset({401, 403, 407, 408, 425, 429})


class ApiError(ReconcilerError):
    """
    Reading the sender failed; nothing that was read so far is lost by it.

    ApiError
    ├─ AwayError         nobody answered, or 429 / 5xx, often enough: try later
    ├─ RefusedError      the sender understood and will not (3xx, 4xx)
    └─ PageBrokenError   an answer came, and it is beyond use
    """


class AwayError(ApiError):
    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  #: what the sender asked for, clamped


class RefusedError(ApiError):
    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def about_the_request(self) -> bool:
        """Whether another request might fare better: not so for credentials and rate limits."""
        return 400 <= self.status < 500 and self.status not in NOT_ABOUT_THE_REQUEST


class PageBrokenError(ApiError):
    """The answer is no page of this listing: not JSON, no items, no way on, or a page twice."""


class MassChangeError(ApiError):
    """So much is missing from the listing that it is taken for an outage."""


class LeaseLostError(ReconcilerError):
    """Another runner has taken the slot over: what this one holds must not be written."""

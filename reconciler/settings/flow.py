"""How much a destination takes, over all replicas and effects, and when it is left alone."""

from datetime import timedelta

from pydantic import Field

from reconciler.settings.resources import Rate
from reconciler.settings.values import Int, Moment, Section


class BreakerSettings(Section):
    after: Int = Field(default=10, ge=0, le=1000)
    """How many failures in a row open it, of several entries; 0: it never opens."""
    pause: Moment = timedelta(seconds=1)
    """How long until one call is let through; after each that fails twice as long."""
    pause_max: Moment = timedelta(minutes=1)
    """The longest wait for the next such call."""


class FlowSettings(Section):
    concurrency: Int = Field(default=8, ge=1, le=256)
    """How many calls may be under way at once, over all replicas."""
    rate: Rate | None = None
    """How many calls it gets, like `10/s`; a quarter of it while a 429 asks; absent: any number."""
    burst: Int | None = Field(default=None, ge=1, le=100_000)
    """How many of them at once after a quiet time; absent: what comes in a tenth of a second."""
    breaker: BreakerSettings = BreakerSettings()
    """When it is left alone because it does not answer, or is not well."""

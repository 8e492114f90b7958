"""The outbox's own world, for cases that are about nothing else."""

from tests.outbox.conftest import pretend, world

__all__ = ["pretend", "world"]

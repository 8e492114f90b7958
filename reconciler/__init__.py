"""Receives webhooks at least once, in any order, with some missing, and is right anyway."""

from reconciler.ledger.event import Event
from reconciler.ledger.handlers import Transaction, handler

__all__ = ["Event", "Transaction", "handler"]

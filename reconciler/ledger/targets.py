"""What effects must know of their destinations to be frozen."""

from __future__ import annotations

from typing import Any

from reconciler.ledger.effects import Target
from reconciler.ledger.mail_compiling import mail_sender
from reconciler.settings.models import (
    AnyDestination,
    HttpDestinationSettings,
    Settings,
    SmtpDestinationSettings,
)


def targets_of(settings: Settings) -> dict[str, Target]:
    return {
        name: Target(
            name=name,
            ordered=destination.ordered,
            hold_after_dead=destination.after_dead == "hold",
            idempotent=destination.idempotent or destination.on_uncertain == "retry",
            **_placing(destination),
            key_max_length=destination.key_max_length,
            key_format=destination.key_format,
            mail=(
                mail_sender(destination)
                if isinstance(destination, SmtpDestinationSettings)
                else None
            ),
        )
        for name, destination in settings.destinations.items()
    }


def _placing(destination: AnyDestination) -> dict[str, Any]:
    """Where the key goes, and how lists are written; a mail is made of its key in its own way."""
    if not isinstance(destination, HttpDestinationSettings):
        return {"key_header": None}
    return {
        "key_header": destination.key_header if destination.key_field is None else None,
        "key_field": destination.key_field,
        "lists": destination.form_lists,
    }

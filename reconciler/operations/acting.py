"""An act of a person: who does it, how, and why."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.operations.assembly import Assembly


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who acts on what the database holds, how, and why."""

    engine: AsyncEngine
    assembly: Assembly
    actor: str
    reason: str | None = None
    dry_run: bool = False
    out_of_order: bool = False

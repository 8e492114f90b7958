"""Makes the Nth call go wrong, wherever it goes to: the database, the sender or the destination."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psycopg

from reconciler.proving.misbehaving_http import Answer, Request
from reconciler.server_connection import ServerConnection


class How(StrEnum):
    BEFORE = "before"  #: the connection breaks, and nothing was done
    AFTER = "after"  #: it was done, and the connection breaks before anybody hears of it
    CANCELLED = "cancelled"  #: whoever waits for it stops waiting


@dataclass(kw_only=True)
class Sabotage:
    """Counts calls, and harms the one that is numbered *at*."""

    at: int | None = None
    how: How = How.BEFORE
    calls: int = 0
    struck: str | None = None  #: what was harmed
    acting: asyncio.Task[Any] | None = None
    seen: list[str] = field(default_factory=list)

    def is_due(self, what: str) -> bool:
        """Count one call; whether it is the one."""
        if self.acting is None:
            return False
        self.calls += 1
        self.seen.append(what)
        if self.calls != self.at:
            return False
        self.struck = what
        return True

    def meets(self, request: Request) -> Answer | None:
        """What a request meets before it is performed; None: nothing."""
        if not self.is_due(f"{request.method} {request.path}"):
            return None
        match self.how:
            case How.BEFORE:
                return Answer(lost=True)
            case How.AFTER:
                return Answer(status=0)  # performed first: see `Lossy`
            case How.CANCELLED:
                assert self.acting is not None
                self.acting.cancel()
                return None

    @contextmanager
    def of_the_database(self) -> Iterator[None]:
        """Within the block every wait for the server is a call that may go wrong."""
        real = ServerConnection.wait

        async def wait(self_: ServerConnection, gen: Any, *args: Any, **named: Any) -> Any:
            if not self.is_due(f"database {getattr(gen, '__name__', gen)}"):
                return await real(self_, gen, *args, **named)
            match self.how:
                case How.BEFORE:
                    self_.let_go()
                case How.AFTER:
                    await real(self_, gen, *args, **named)
                    self_.let_go()
                case How.CANCELLED:
                    assert self.acting is not None
                    self.acting.cancel()
                    return await real(self_, gen, *args, **named)
            raise psycopg.OperationalError("the connection was lost")

        ServerConnection.wait = wait  # type: ignore[method-assign]
        try:
            yield
        finally:
            ServerConnection.wait = real  # type: ignore[method-assign]

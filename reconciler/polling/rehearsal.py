"""The real transaction, rolled back: what a dry run shows is what would have happened."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.ledger.apply import apply
from reconciler.ledger.batch import Result
from reconciler.ledger.commit import set_limits
from reconciler.ledger.event import Event, Outcome
from reconciler.ledger.reactions import UserStepError
from reconciler.ledger.rules import Rules
from reconciler.transactions import is_transient, told, transact

T = TypeVar("T")


class _Done(Exception, Generic[T]):  # noqa: N818 - no error: it carries a result out
    def __init__(self, result: T) -> None:
        super().__init__()
        self.result = result


async def rolled_back(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """Run *work* in a transaction that leaves nothing behind, and return what it came to."""

    async def and_undo(connection: AsyncConnection) -> T:
        raise _Done(await work(connection))

    try:
        return await transact(engine, and_undo)
    except _Done as done:
        result: T = done.result
        return result


async def rehearse(engine: AsyncEngine, rules: Rules, events: Sequence[Event]) -> list[Result]:
    """
    Apply each event by itself and roll it back.

    What the user's own statement or handler makes fail comes back with its fault.
    """
    return [await _rehearse_one(engine, rules, event) for event in events]


async def _rehearse_one(engine: AsyncEngine, rules: Rules, event: Event) -> Result:
    async def work(connection: AsyncConnection) -> Result:
        await set_limits(connection, rules)
        return (await apply(connection, rules, [event]))[0]

    try:
        return await rolled_back(engine, work)
    except (UserStepError, DBAPIError) as error:
        if is_transient(error):
            raise
        return Result(event=event, outcome=Outcome.QUARANTINED, fault=told(error))

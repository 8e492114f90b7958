"""Python handlers: how they are written, what they may do, and how they are found."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from reconciler.errors import ConfigError, Problem
from reconciler.ledger.event import Event

if TYPE_CHECKING:  # `import reconciler` stays cheap: SQLAlchemy comes with the first transaction
    from sqlalchemy import CursorResult, Executable

MARK = "__reconciler_handlers__"

Globs = str | Sequence[str]
IfStale = Literal["count", "skip"]
Handle = Callable[[Event, "Transaction"], Awaitable[None]]
Written = TypeVar("Written", bound=Handle)


def handler(  # noqa: PLR0913 - the words of the configuration
    sender: str,
    *,
    on: Globs = (),
    on_change: Globs = (),
    becomes: str | None = None,
    when: str | None = None,
    if_stale: IfStale | None = None,
) -> Callable[[Written], Written]:
    """
    Run the decorated function inside the transaction that an event takes effect in.

    *on* names event types (a fact: once per event), *on_change* kinds of resources (a change:
    once per newer state, whoever found out); exactly one of them, as shell globs. *becomes*,
    *when* and *if_stale* mean what they mean for an effect. What the function raises rolls the
    event back.
    """
    facts, kinds = as_globs(on), as_globs(on_change)
    if bool(facts) == bool(kinds):
        raise TypeError("@handler takes either on= (event types) or on_change= (kinds)")

    def mark(function: Written) -> Written:
        is_async = inspect.iscoroutinefunction(function)
        if not is_async:
            raise TypeError(f"@handler: {function!r} must be an `async def`")
        marked = Handler(
            sender=sender,
            on=facts,
            on_change=kinds,
            becomes=becomes,
            when=when,
            if_stale=if_stale,
            function=function,
        )
        setattr(function, MARK, (*getattr(function, MARK, ()), marked))
        return function

    return mark


def load(modules: Sequence[str], *, directory: Path | None = None) -> tuple[Handler, ...]:
    """
    Import *modules* (also those beside the configuration, in *directory*) and list their handlers
    in the order in which they are written; a module that cannot be imported is a ConfigError.
    """
    found: list[Handler] = []
    problems: list[Problem] = []
    for index, name in enumerate(modules):
        try:
            with importable(directory):
                module = importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - the user's module may raise anything
            message = f"{name!r} cannot be imported: {type(error).__name__}: {error}"
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                message = (
                    f"there is no module {name!r}: neither on Python's path nor in {directory}"
                )
            problems.append(Problem(key=f"handlers[{index}]", message=message))
            continue
        marked = [one for value in vars(module).values() for one in marks_of(value)]
        if not marked:
            message = f"{name!r} has no function decorated with @handler"
            problems.append(Problem(key=f"handlers[{index}]", message=message))
        found += [one for one in marked if one not in found]
    if problems:
        raise ConfigError(problems=problems)
    return tuple(found)


def marks_of(value: object) -> tuple[Handler, ...]:
    """
    The decorators on *value*, the topmost first; none for what is no handler.

    A decorator of the user's own above ours keeps the mark, and is what must be called.
    """
    if not inspect.isfunction(value):
        return ()
    return tuple(replace(mark, function=value) for mark in reversed(vars(value).get(MARK, ())))


def as_globs(value: Globs) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@contextmanager
def importable(directory: Path | None) -> Iterator[None]:
    """Look for modules in *directory* too, after every other place, while this lasts."""
    if directory is None:
        yield
        return
    place = str(directory)
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One @handler, as it was written."""

    sender: str  #: a shell glob over senders
    on: tuple[str, ...]
    on_change: tuple[str, ...]
    becomes: str | None
    when: str | None
    if_stale: IfStale | None
    function: Handle

    @property
    def where(self) -> str:
        """How messages name it: `handlers.shop_rules.record_refund`."""
        return f"handlers.{self.function.__module__}.{self.function.__qualname__}"


class Execute(Protocol):
    async def __call__(self, statement: Executable | str, params: Any) -> CursorResult[Any]: ...


class Send(Protocol):
    def __call__(  # noqa: PLR0913 - what a call consists of
        self,
        *,
        destination: str,
        request: str,
        json: object,
        form: Mapping[str, object] | None,
        query: Mapping[str, object] | None,
        effect: str,
        headers: Mapping[str, str],
        key: str | None,
        idempotent: bool | None,
        lane: str | None,
    ) -> None: ...


class Transaction:
    """
    What a handler may do inside the transaction: run statements, and ask for calls.

    It cannot commit or roll back: what the handler wrote stands or falls with the event. It is
    of no use once the handler has returned.
    """

    __slots__ = ("_execute", "_open", "_send")

    def __init__(self, *, execute: Execute, send: Send) -> None:
        self._execute = execute
        self._send = send
        self._open = True

    async def execute(
        self, statement: Executable | str, params: Mapping[str, Any] | None = None
    ) -> CursorResult[Any]:
        """
        Run one statement: SQLAlchemy Core, or a text with `:names`.

        It runs under a savepoint: a caught error leaves the transaction usable.
        """
        self._require_open()
        return await self._execute(statement, params)

    async def send(  # noqa: PLR0913 - what a call consists of
        self,
        destination: str,
        request: str,
        *,
        effect: str,
        json: object = None,
        form: Mapping[str, object] | None = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        idempotent: bool | None = None,
        lane: str | None = None,
    ) -> None:
        """
        Ask for one call of *destination*, written with this event and made after the commit.

        *request* is `METHOD /path`; *effect* names the call, once per event. Without *key* the
        idempotency key is `event_id:effect` for a fact and `sender:kind:key:version:effect` for
        a change. The body is *json* or *form* (nested as `a[b]`), *query* goes behind the path;
        numbers in them are int or Decimal. Calls of one *lane* are made one after the other,
        whatever they are about.
        """
        self._require_open()
        self._send(
            destination=destination,
            request=request,
            json=json,
            form=form,
            query=query,
            effect=effect,
            headers=headers or {},
            key=key,
            idempotent=idempotent,
            lane=lane,
        )

    def close(self) -> None:
        """End its use: the handler has returned."""
        self._open = False

    def _require_open(self) -> None:
        if not self._open:
            raise RuntimeError("this transaction ended when its handler returned")

"""Entries that a part of a statement has picked, for the part that changes them."""

from sqlalchemy import CTE, ColumnElement, any_, func, select

from outbox.store import outbox


def these(picked: CTE) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """
    The entries whose ids were *picked*.

    Named twice: how many they are cannot be estimated, and of a join alone a planner that thinks
    of a tenth of a deep backlog reads the whole table.
    """
    ids = func.array(select(picked.c.id).scalar_subquery())
    return outbox.c.id == any_(ids), outbox.c.id == picked.c.id

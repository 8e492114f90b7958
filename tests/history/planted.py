"""Bugs that a history must not get away with: each one expression, in a copy of the packages."""

from tests.mutants import GUARD, STABLE_KEY, Mutant

COMMIT_NOW = "await (await connection.get_raw_connection()).driver_connection.commit()"


def bug(file: str, before: str, after: str) -> Mutant:
    return Mutant(promise="", file=file, before=before, after=after, story="")


PLANTED: dict[str, tuple[Mutant, ...]] = {
    "no version guard": (
        GUARD,
        bug(
            "reconciler/ledger/resources.py",
            "    _rows.version < _newer.version,\n",
            "    _rows.version != _newer.version,\n",
        ),
    ),
    "no claim": (
        bug(
            "reconciler/ledger/claims.py",
            "return {(row.sender, row.event_id) for row in taken}",
            'return {(row["sender"], row["event_id"]) for row in rows}',
        ),
    ),
    "outbox row outside the transaction": (
        bug(
            "outbox/enqueue.py",
            "    written = await _INSERT_ENTRIES.rows(connection, rows=rows)\n",
            f"    {COMMIT_NOW}\n    written = await _INSERT_ENTRIES.rows(connection, rows=rows)\n",
        ),
    ),
    "claim outside the transaction": (
        bug(
            "reconciler/ledger/apply.py",
            "    await claim_delivered(connection, batch)\n",
            f"    await claim_delivered(connection, batch)\n    {COMMIT_NOW}\n",
        ),
    ),
    "ack before commit": (
        bug(
            "reconciler/ledger/commit.py",
            "results = await transact(engine, work)\n",
            "results = await work(held := await engine.connect())\n"
            "        import asyncio\n"
            "        async def later():\n"
            "            await asyncio.sleep(0.2)\n"
            "            await held.commit()\n"
            "            await held.close()\n"
            "        asyncio.ensure_future(later())\n",
        ),
    ),
    "a new key for each attempt": (STABLE_KEY,),
    "a change keyed by who told of it": (
        bug(
            "reconciler/ledger/keys.py",
            'key = f"{event.sender}:{event.kind}:{event.key}:{event.version}:{effect}"',
            'key = f"{event.event_id}:::{event.version}:{effect}"',
        ),
    ),
    "delivered before it is sent": (
        bug(
            "outbox/relay.py",
            "        result = await call(destination, leased)\n",
            "        from outbox.verdict import Ruling\n"
            "        from outbox.entry import Verdict\n"
            "        early = Ruling(verdict=Verdict.DELIVERED, maybe_sent=True)\n"
            "        backoff = self._policy.backoff\n"
            "        self.marking.add(mark_of(leased, early, backoff, jitter=0.5))\n"
            "        result = await call(destination, leased)\n",
        ),
    ),
    "a lost answer is taken for a success": (
        bug(
            "outbox/verdict.py",
            "            found = _maybe_done(reason)\n",
            "            found = Ruling(verdict=Verdict.DELIVERED)\n",
        ),
    ),
    "a call of unknown outcome is repeated without a key": (
        bug(
            "outbox/lease_statement.py",
            "unanswered = and_(due.call_open, ~due.idempotent)",
            "unanswered = and_(due.call_open, ~due.idempotent, due.idempotent)",
        ),
    ),
    "reconciler off": (
        bug(
            "reconciler/polling/settling.py",
            "    if not judged.events:\n        return []\n    await set_limits",
            "    if True:\n        return []\n    await set_limits",
        ),
    ),
}

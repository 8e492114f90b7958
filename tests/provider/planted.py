"""Bugs that the provider must not let pass: each in a copy of the packages, with its scenario."""

from dataclasses import dataclass

from tests.history.planted import PLANTED as HISTORY
from tests.history.planted import bug
from tests.mutants import STABLE_KEY, Mutant


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A bug, and the scenario that has to notice it."""

    scenario: str
    mutants: tuple[Mutant, ...]


NO_LENGTH = bug(
    "outbox/lease_statement.py",
    "due_at=case((goes_on, func.now() + held.lease * SECOND)),",
    "due_at=case((goes_on, func.now())),",
)
PLANTED: dict[str, Planted] = {
    "a new key for each attempt": Planted(scenario="killed", mutants=(STABLE_KEY,)),
    "delivered before it is sent": Planted(
        scenario="killed", mutants=HISTORY["delivered before it is sent"]
    ),
    "a lost answer is taken for a success": Planted(
        scenario="killed", mutants=HISTORY["a lost answer is taken for a success"]
    ),
    "a call of unknown outcome is repeated without a key": Planted(
        scenario="killed", mutants=HISTORY["a call of unknown outcome is repeated without a key"]
    ),
    "409 is final": Planted(
        scenario="killed",
        mutants=(
            bug(
                "outbox/verdict.py",
                'return rules.conflict != "dead"',
                'return rules.conflict == "never"',
            ),
        ),
    ),
    "422 says that nothing was done before": Planted(
        scenario="killed",
        mutants=(
            bug(
                "outbox/verdict.py",
                "case Verdict.DEAD if maybe_sent and not found.settles:\n",
                "case Verdict.DEAD if maybe_sent and not found.reason:\n",
            ),
        ),
    ),
    "a key outlives its provider": Planted(
        scenario="killed",
        mutants=(
            bug(
                "outbox/taking.py",
                "key_life=destination.key_life(lease=self._lease)",
                'key_life=__import__("datetime").timedelta(days=36500)',
            ),
        ),
    ),
    "the key's clock starts with each attempt": Planted(
        scenario="killed",
        mutants=(
            bug(
                "outbox/lease_statement.py",
                "func.coalesce(outbox.c.first_attempt_at, case((goes_on, func.now())))",
                "func.now()",
            ),
        ),
    ),
    "Retry-After without a limit": Planted(
        scenario="killed",
        mutants=(
            bug(
                "outbox/backoff.py",
                "within = min(max(seconds, 0.0), most.total_seconds())",
                "within = min(max(seconds, 0.0), 1e8)",
            ),
        ),
    ),
    "whole bodies are read": Planted(
        scenario="killed",
        mutants=(
            bug("outbox/destinations/http.py", "BODY_LIMIT = 64 * 1024", "BODY_LIMIT = 10**9"),
        ),
    ),
    "marks fail and leasing goes on": Planted(
        scenario="refused",
        mutants=(
            bug(
                "outbox/marking.py",
                "        if self._failures or self._clock() < self._others_until:\n",
                "        if False:\n",
            ),
        ),
    ),
    "marks that fail are dropped": Planted(
        scenario="refused",
        mutants=(
            bug(
                "outbox/marking.py",
                "            self._waiting.extendleft(reversed(batch))\n            if not",
                "            if not",
            ),
        ),
    ),
    "a lease of no length": Planted(scenario="replicas", mutants=(NO_LENGTH,)),
    "leases by the relay's own clock": Planted(
        scenario="replicas",
        mutants=(
            bug(
                "outbox/lease_statement.py",
                "            outbox.c.due_at <= func.now(),\n",
                "            outbox.c.due_at\n"
                "            <= __import__('sqlalchemy').bindparam('clock', type_=Time),\n",
            ),
            bug(
                "outbox/leasing.py",
                "LEASE.rows(connection, rows=rows, ended=over)",
                "LEASE.rows(\n"
                "        connection,\n"
                "        rows=rows,\n"
                "        ended=over,\n"
                "        clock=datetime.now(__import__('datetime').UTC),\n"
                "    )",
            ),
        ),
    ),
    "successes are fenced": Planted(
        scenario="late",
        mutants=(
            bug(
                "outbox/settling.py",
                ".where(*these(marks), or_(success, latest))",
                ".where(*these(marks), latest)",
            ),
        ),
    ),
    "a call after its lease": Planted(
        scenario="late",
        mutants=(
            bug(
                "outbox/relay.py",
                "late = began - asked_at >= last_moment.total_seconds() - LEASE_SLACK",
                "late = last_moment.total_seconds() < -asked_at",
            ),
        ),
    ),
    "Retry-After is not heard": Planted(
        scenario="killed",
        mutants=(
            bug(
                "outbox/backoff.py",
                "        wait = max(wait, floor, spread)\n",
                "        wait = max(wait, 0 * floor, 0 * spread)\n",
            ),
        ),
    ),
    "a mail without an answer is sent again": Planted(
        scenario="mail",
        mutants=(
            bug(
                "outbox/destinations/smtp.py",
                "kind = Sent.MAYBE_SENT if self.ended else Sent.NOT_SENT",
                "kind = Sent.NOT_SENT",
            ),
        ),
    ),
    "another Message-ID for each attempt": Planted(
        scenario="mail",
        mutants=(
            bug(
                "outbox/destinations/smtp.py",
                "own = message_id(request.idempotency_key, mail_from=sender)",
                'own = message_id(__import__("uuid").uuid4().hex, mail_from=sender)',
            ),
        ),
    ),
    "no named lanes": Planted(
        scenario="order",
        mutants=(
            bug(
                "outbox/lanes.py",
                "earlier.c.lane_position < later.c.lane_position,",
                "earlier.c.lane_position < 0 * later.c.lane_position,",
            ),
        ),
    ),
    "a lane ends at its destination": Planted(
        scenario="order",
        mutants=(
            bug(
                "outbox/lanes.py",
                "        earlier.c.lane == later.c.lane,\n",
                "        earlier.c.lane == later.c.lane,\n"
                "        earlier.c.destination == later.c.destination,\n",
            ),
        ),
    ),
    "no order": Planted(
        scenario="order",
        mutants=(
            bug(
                "outbox/lease_statement.py",
                "            ~waits_for_another(wanted),\n",
                "            outbox.c.id.is_not(None),\n",
            ),
        ),
    ),
    "failures are not fenced": Planted(
        scenario="order",
        mutants=(
            bug(
                "outbox/settling.py",
                ".where(*these(marks), or_(success, latest))",
                ".where(*these(marks), or_(success, latest, mark.id.is_not(None)))",
            ),
        ),
    ),
}

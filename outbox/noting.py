"""What calls told of their destinations, written down beside what became of their entries."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import flow
from outbox.breaker import Seen
from outbox.destinations import Destination
from outbox.flow import Changed
from outbox.leasing import Leased
from outbox.settling import Mark

log = structlog.get_logger()


class Noting:
    """Knows which destinations are well, so that calls that go well cost no statement."""

    def __init__(
        self, destinations: Mapping[str, Destination], *, random: Callable[[], float]
    ) -> None:
        self._rated = {name for name, one in destinations.items() if one.rate is not None}
        self._breakers = {name: one.breaker for name, one in destinations.items()}
        self._random = random
        self._troubled: set[str] = set()

    def learn(self, asked: "flow.Asked") -> None:
        """What other processes found out meanwhile, of destinations that were asked about."""
        self._troubled = (self._troubled - set(asked.well)) | set(asked.troubled)

    async def note(
        self, connection: AsyncConnection, marks: Sequence[Mark], unsent: Sequence[Leased]
    ) -> list[Changed]:
        """Write down what has to be; the caller owns the transaction, and tells after it."""
        given_back = Counter(
            one.destination for one in unsent if one.probe or one.destination in self._rated
        )
        seen = [one.seen for one in marks if one.seen is not None]
        if given_back:
            # Two relays that are stopped at once would wait for each other.
            await flow.lock(connection, {*given_back, *(one.destination for one in seen)})
            probes = {one.destination for one in unsent if one.probe}
            await flow.give_back(connection, given_back, probes=probes)
        return await self.note_seen(connection, seen)

    async def note_seen(self, connection: AsyncConnection, seen: Sequence[Seen]) -> list[Changed]:
        """
        Write down what has to be of what was *seen*; as `note`.

        Fewer calls than its rate a destination can have only where it has one. Elsewhere what
        was asked for is asked for its entry alone.
        """
        seen = [
            one if one.destination in self._rated else one._replace(slowed=None) for one in seen
        ]
        worth = self._troubled | {
            one.destination for one in seen if one.trouble or one.probe or one.slowed is not None
        }
        telling = [one for one in seen if one.destination in worth]
        if not telling:
            return []
        return await flow.note(connection, telling, self._breakers, jitter=self._random())

    def tell(self, changes: Sequence[Changed]) -> None:
        """Log what changed, once it is committed."""
        for change in changes:
            before, after, name = change.before, change.after, change.destination
            if after.open or after.failures:
                self._troubled.add(name)
            else:
                self._troubled.discard(name)
            facts = {"destination": name, "reason": after.reason}
            if after.open and not before.open:
                log.error(
                    "relay.breaker_opened",
                    **facts,
                    failures=after.failures,
                    probe_at=str(after.probe_at),
                )
            elif after.open and after.probe_at != before.probe_at:
                log.warning("relay.probe_failed", **facts, probe_at=str(after.probe_at))
            elif before.open and not after.open:
                log.info("relay.breaker_closed", destination=name, opened_at=str(before.opened_at))
            if after.slowed_until != before.slowed_until:
                log.warning("relay.slowed", destination=name, until=str(after.slowed_until))

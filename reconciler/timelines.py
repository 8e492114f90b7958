"""Which of several servers is the primary: the timeline tells a former one from the newest."""

from typing import Any, Final

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from reconciler.server_connection import ServerConnection, open_connection

log = structlog.get_logger()

WHERE: Final = """\
select system_identifier,
       case when pg_is_in_recovery() then null
            else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end as timeline
  from pg_control_system()
"""
"""Each promotion begins a timeline; a WAL file's name begins with its timeline, in hexadecimal."""


class Timelines:
    """
    Connects to the newest primary, by the newest timeline of each cluster that was seen.

    A primary that comes back after its standby has been promoted takes writes, and whatever it
    is told is lost when it is rebuilt. A process that has once seen the new timeline does not
    use it; one that has not cannot tell.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self.newest: dict[int, int] = {}  #: seen, by the cluster's identifier
        self._may_ask = True

    async def open(self) -> ServerConnection:
        """
        A connection to the first server that takes it and is not a former primary.

        Raises psycopg.OperationalError where there is none.
        """
        servers = self._conninfo
        while True:
            connection = await open_connection(servers)
            try:
                stale = await self._why_stale(connection)
            except BaseException:
                connection.let_go()
                raise
            if stale is None:
                return connection
            place = (connection.info.host, connection.info.port)
            connection.let_go()
            log.warning("database.former_primary", host=place[0], port=place[1], reason=stale)
            others = without(servers, *place)
            if others is None:
                raise psycopg.OperationalError(stale)
            servers = others

    async def _why_stale(self, connection: ServerConnection) -> str | None:
        """Why the server of *connection* must not be used; None if nothing speaks against it."""
        if not self._may_ask:
            return None
        await connection.set_autocommit(True)
        try:
            row = await (await connection.execute(WHERE)).fetchone()
        except psycopg.errors.InsufficientPrivilege:
            self._may_ask = False  # some providers keep it from everybody
            row = None
        await connection.set_autocommit(False)
        if row is None or row[1] is None:
            return None
        cluster, timeline = row[0], int(row[1], 16)
        newest = self.newest.get(cluster, timeline)
        if timeline < newest:
            return f"a former primary: it is on timeline {timeline}, and {newest} was seen"
        self.newest[cluster] = timeline
        return None


def without(conninfo: str, host: str, port: int) -> str | None:
    """
    *conninfo* without one of its servers; None if no other is left.

    >>> without("host=a,b port=1,2", "a", 1)
    'host=b port=2'
    """
    said = conninfo_to_dict(conninfo)
    lists = {
        name: str(said[name]).split(",") for name in ("host", "hostaddr", "port") if said.get(name)
    }
    hosts = lists.get("host") or lists.get("hostaddr") or [""]
    ports = lists.get("port") or ["5432"]
    places = list(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=False))
    left = [at for at, place in enumerate(places) if place != (host, str(port))]
    if not left or len(left) == len(places):
        return None
    kept = {
        name: ",".join(values[at] for at in left)
        for name, values in lists.items()
        if len(values) == len(places)
    }
    merged: dict[str, Any] = {**said, **kept}
    return make_conninfo("", **merged)

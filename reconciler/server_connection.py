"""One connection to the server: how it is asked for, and what it notices."""

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_dumps, set_json_loads

from reconciler import exact_json
from reconciler.errors import ConfigError

NETWORK: Final = {
    "application_name": "reconciler",
    "connect_timeout": "3",
    "tcp_user_timeout": "3000",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",
}
"""What a URL does not say itself: without these a client hangs for a whole network partition."""


async def open_connection(conninfo: str) -> "ServerConnection":
    """
    A connection that works through PgBouncer in transaction mode, and reads JSON exactly.

    No prepared statements, no startup options, nothing set for the session.
    """
    connection = await ServerConnection.connect(conninfo, prepare_threshold=None)
    set_json_loads(read_json, connection)
    set_json_dumps(exact_json.dumps, connection)
    connection.add_notice_handler(connection.notice)
    return connection


def read_json(data: str | bytes) -> exact_json.Json:
    return exact_json.parse(data.encode() if isinstance(data, str) else data)


def conninfo_for(url: str, *, password: str | None = None) -> str:
    """
    The libpq connection string for *url*, with our network limits where it has none.

    Takes what libpq takes, and SQLAlchemy's driver suffix and repeated `host=a:5432&host=b:5432`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in {"postgresql", "postgres"}:
        raise ConfigError("database.url is not a PostgreSQL URL", hint='like "postgresql:///app"')
    address, _, query = rest.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    hosts = [host for name, host in pairs if name == "host"]
    if len(hosts) > 1:  # libpq would silently keep the last one
        places = [host.rpartition(":") if ":" in host else (host, ":", "5432") for host in hosts]
        pairs = [(name, value) for name, value in pairs if name not in {"host", "port"}]
        pairs += [("host", ",".join(place[0] for place in places))]
        pairs += [("port", ",".join(place[2] for place in places))]
    query = "&".join(f"{name}={value}" for name, value in pairs)
    try:
        said = conninfo_to_dict(f"postgresql://{address}" + (f"?{query}" if query else ""))
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"database.url cannot be read: {str(error).strip()}") from None
    merged: dict[str, Any] = {**NETWORK, **said}
    if password is not None:
        merged["password"] = password
    return make_conninfo("", **merged)


class ServerConnection(psycopg.AsyncConnection[Any]):
    """A connection that notices when a commit came back without its standby's word."""

    commit_unconfirmed: bool = False

    def notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        # "canceling wait for synchronous replication": COMMIT succeeds all the same. The text
        # is translated and the SQLSTATE is that of any warning; the place is neither.
        if diagnostic.source_function == "SyncRepWaitForLSN":
            self.commit_unconfirmed = True

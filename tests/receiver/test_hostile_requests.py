"""Stories of clients that are slow, large, confused or gone, and of a database that is away."""

import asyncio
import gzip
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import engine_for
from reconciler.receiver import envelope
from reconciler.receiver.body import Allowance

from .receiving import Receiving, receiving
from .senders import SHOP, body_of, order, signed

pytestmark = pytest.mark.anyio

APPLIED = {"processed_events": 1, "event_bodies": 1, "resources": 1}


def with_sender(line: str) -> str:
    return SHOP.replace("[senders.shop]\n", f"[senders.shop]\n{line}\n", 1)


def head(body: bytes, *lines: str, length: int | None = None) -> bytes:
    """Return the head of a rightly signed delivery of *body* that says it has *length*."""
    said = {"Host": "x", "Content-Length": str(len(body) if length is None else length)}
    named = said | signed(body)
    every = ["POST /webhooks/shop HTTP/1.1", *(f"{n}: {v}" for n, v in named.items()), *lines]
    return "\r\n".join([*every, "", ""]).encode()


async def works(shop: Receiving) -> None:
    """See that a delivery like any other is served."""
    assert "applied" == (await shop.deliver(order("evt_after", order_id="o9"))).json()["outcome"]


async def test_a_body_that_stalls_or_trickles_is_not_waited_for(
    engine: AsyncEngine, tmp_path: Path
):
    """One total time for the body, whatever arrives meanwhile: 408, and the connection ends."""
    configuration = '[receiver]\nbody_timeout = "300ms"\n' + SHOP
    body = body_of(order())
    async with receiving(engine, tmp_path, configuration) as shop:
        assert b"HTTP/1.1 408" in await shop.talk(head(body) + body[:20])

        reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        writer.write(head(body))
        answer = b""
        for position in range(len(body)):
            writer.write(body[position : position + 1])
            try:
                async with asyncio.timeout(0.02):
                    answer = await reader.read(100)
                    break
            except TimeoutError:
                continue
        writer.close()
        assert b"HTTP/1.1 408" in answer
        assert [408, 408] == [told.status for told in shop.told]
        assert {} == await shop.counts()
        await works(shop)


@pytest.mark.parametrize("chunked", [False, True], ids=["a length", "chunks"])
async def test_a_client_that_leaves_is_no_error(
    engine: AsyncEngine, tmp_path: Path, *, chunked: bool
):
    """Half a body stores nothing and counts as nothing; the whole one later is new (C15)."""
    body = body_of(order())
    async with receiving(engine, tmp_path) as shop:
        sent = head(body) + body[:50]
        if chunked:
            lines = "\r\n".join(f"{n}: {v}" for n, v in signed(body).items())
            sent = (
                f"POST /webhooks/shop HTTP/1.1\r\nHost: x\r\n{lines}\r\n"
                f"Transfer-Encoding: chunked\r\n\r\n32\r\n{body[:50].decode()}\r\n"
            ).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        writer.write(sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        whole = await shop.deliver(order())

        assert "applied" == whole.json()["outcome"]
        assert [200] == [told.status for told in shop.told]
        assert APPLIED == await shop.counts()


async def test_a_body_has_a_size(engine: AsyncEngine, tmp_path: Path):
    """
    Up to the limit and not a byte more, said in advance or found out while it streams. The
    client hears 413 though it has not sent everything yet.
    """
    limit = 4096
    fits = body_of(order(pad="x" * limit))
    fits = body_of(order(pad="x" * (2 * limit - len(fits))))
    assert limit == len(fits)
    async with receiving(engine, tmp_path, with_sender('max_body = "4KiB"')) as shop:
        assert 200 == (await shop.deliver(fits)).status_code
        assert 413 == (await shop.deliver(fits + b" ")).status_code
        assert 413 == (await shop.deliver(b"x" * 5_000_000)).status_code

        async def stream(count: int):
            for _ in range(count):
                yield b"x" * 1000

        for count in (5, 3000):
            answer = await shop.http.post("/webhooks/shop", content=stream(count))
            assert 413 == answer.status_code
        declared = await shop.talk(head(b"", length=2**30))
        assert b"HTTP/1.1 413" in declared
        assert b"connection: close" in declared.lower()
        huge = await shop.talk(head(b"", length=10**25))
        assert huge.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


async def test_a_length_that_lies_is_not_believed(engine: AsyncEngine, tmp_path: Path):
    """Too short a length cuts the body, and the signature with it; the rest is garbage."""
    body = body_of(order())
    async with receiving(engine, tmp_path) as shop:
        answer = await shop.talk(head(body, length=len(body) - 5) + body)

        assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))
        assert {} == await shop.counts()


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("Content-Length: 5\r\nTransfer-Encoding: chunked", id="both"),
        pytest.param("Transfer-Encoding: chunked\r\nContent-Length: 5", id="both, other order"),
        pytest.param("Host: y\r\nContent-Length: 0", id="two hosts"),
    ],
)
async def test_framing_that_a_proxy_could_read_differently_is_refused(
    engine: AsyncEngine, tmp_path: Path, lines: str
):
    async with receiving(engine, tmp_path) as shop:
        request = f"POST /webhooks/shop HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n0\r\n\r\n"

        assert (await shop.talk(request.encode())).startswith(b"HTTP/1.1 400")
        await works(shop)


async def test_a_trailer_is_no_header(engine: AsyncEngine, tmp_path: Path):
    """What comes after the body, where proxies do not look, says nothing of the delivery."""
    async with receiving(engine, tmp_path) as shop:
        body = body_of(order("evt_1"))
        lines = [f"{name}: {value}" for name, value in signed(body).items()]
        request = (
            b"POST /webhooks/shop HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
        )

        answer = await shop.talk(request + "\r\n".join([*lines, "", ""]).encode())

        assert answer.startswith(b"HTTP/1.1 401")
        await works(shop)


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        pytest.param("1.0", "Transfer-Encoding: chunked", id="chunks of old"),
        pytest.param(
            "1.1", "Content-Length: 5\r\nConnection: Upgrade\r\nUpgrade: h2c", id="upgrade"
        ),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_from_a_wrong_signature(
    engine: AsyncEngine, tmp_path: Path, version: str, lines: str
):
    """A body in HTTP/1.0 has no chunks (RFC 9112, 6.1); one behind an Upgrade is not read."""
    async with receiving(engine, tmp_path) as shop:
        request = f"POST /webhooks/shop HTTP/{version}\r\nHost: x\r\n{lines}\r\n\r\n0\r\n\r\n"

        assert (await shop.talk(request.encode())).startswith(b"HTTP/1.1 400")
        await works(shop)


async def test_a_request_without_a_host_is_none(engine: AsyncEngine, tmp_path: Path):
    async with receiving(engine, tmp_path) as shop:
        request = b"POST /webhooks/shop HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"

        assert (await shop.talk(request)).startswith(b"HTTP/1.1 400")


async def test_expect_continue_is_answered_only_where_the_body_is_wanted(
    engine: AsyncEngine, tmp_path: Path
):
    """curl asks before it sends a large body: who is refused anyway is refused at once."""
    body = body_of(order())
    async with receiving(engine, tmp_path) as shop:
        reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        writer.write(head(body, "Expect: 100-continue"))
        assert b"HTTP/1.1 100 Continue\r\n\r\n" == await reader.readuntil(b"\r\n\r\n")
        writer.write(body)
        assert b"HTTP/1.1 200" in await reader.readuntil(b"\r\n")
        writer.close()
        refused = await shop.talk(head(b"", "Expect: 100-continue", length=2**30))
        assert refused.startswith(b"HTTP/1.1 413")


async def test_all_bodies_together_have_a_limit(engine: AsyncEngine, tmp_path: Path):
    """Memory is finite: what does not fit is asked to come again, and given back it fits."""
    async with receiving(engine, tmp_path) as shop:
        allowance = shop.app.allowance
        allowance.limit = 1000
        too_much = await shop.deliver(order(pad="x" * 2000))

        assert (503, "5") == (too_much.status_code, too_much.headers["retry-after"])
        assert 0 == allowance.taken
        await works(shop)
    share = Allowance(limit=10).share()
    share.take(10)
    share.give_back()
    assert 0 == share.whole.taken


async def test_nothing_leaves_before_the_commit(engine: AsyncEngine, tmp_path: Path):
    """
    A twin of the delivery is in flight elsewhere: ours is not answered while nobody knows. The
    twin rolls back, so ours is the one that counts, and only now it is answered (P2, C39).
    """
    async with receiving(engine, tmp_path) as shop:
        async with engine.connect() as twin:
            await twin.execute(CLAIM)
            waiting = asyncio.create_task(shop.deliver(order()))
            await until_blocked(engine)
            assert not waiting.done()
            await twin.rollback()

        assert "applied" == (await waiting).json()["outcome"]
        assert APPLIED == await shop.counts()


@pytest.mark.parametrize("patience", ["1s", "8s"])
async def test_a_twin_that_never_ends_is_not_waited_for(
    engine: AsyncEngine, tmp_path: Path, patience: str
):
    """
    503 within the time that the sender waits, or once the lock is not to be had, and never
    "duplicate"; others are served (C39).
    """
    async with receiving(engine, tmp_path, with_sender(f'answer_within = "{patience}"')) as shop:
        async with engine.connect() as twin:
            await twin.execute(CLAIM)
            late = await shop.deliver(order())
            await works(shop)
            await twin.rollback()

        assert (503, "5") == (late.status_code, late.headers["retry-after"])
        again = await shop.deliver(order())
        assert again.json()["outcome"] in {"applied", "duplicate"}


async def test_a_database_that_is_away_is_said_and_comes_back(
    engine: AsyncEngine, database_url: str, tmp_path: Path
):
    """503 with Retry-After while it refuses us, for events and for what is beyond use alike."""
    name = database_url.partition("?")[0].rpartition("/")[2]
    admin = engine_for(database_url.replace(f"/{name}", "/postgres"))

    async def allow(*, connections: bool) -> None:
        async with admin.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            allowed = "true" if connections else "false"
            await connection.execute(text(f"alter database {name} allow_connections {allowed}"))
            await connection.execute(
                text("select pg_terminate_backend(pid) from pg_stat_activity where datname = :n"),
                {"n": name},
            )

    async with receiving(engine, tmp_path, with_sender('answer_within = "2s"')) as shop:
        await allow(connections=False)
        away = [await shop.deliver(order()), await shop.deliver(b"Hello, World!")]
        await allow(connections=True)
        back = await shop.deliver(order())

        assert [(503, "5")] * 2 == [(a.status_code, a.headers["retry-after"]) for a in away]
        assert "applied" == back.json()["outcome"]
        assert APPLIED == await shop.counts()
    await admin.dispose()


async def test_too_many_at_once_are_sent_away(engine: AsyncEngine, tmp_path: Path):
    """With places for two, a burst of thirty is served in part and refused in part, and ends."""
    configuration = "[receiver]\nwaiting_max = 2\nbatch_max = 1\n" + SHOP
    async with receiving(engine, tmp_path, configuration) as shop:
        async with engine.connect() as twin, asyncio.TaskGroup() as burst:
            await twin.execute(CLAIM)
            tasks = [
                burst.create_task(shop.deliver(order(f"evt_{n % 2 or n}", order_id=f"o{n}")))
                for n in range(30)
            ]
            await until_blocked(engine)
            await twin.rollback()
        answers = [task.result() for task in tasks]

        assert {200, 503} == {answer.status_code for answer in answers}
        assert {"5"} == {a.headers["retry-after"] for a in answers if a.status_code == 503}
        await works(shop)


async def test_clients_that_hang_up_take_no_connection_with_them(
    engine: AsyncEngine, tmp_path: Path
):
    """Fifty deliveries are broken off within milliseconds; the pool is whole afterwards (C134)."""
    async with receiving(engine, tmp_path) as shop:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(broken_off(shop, number))
        for number in range(3):
            answer = await shop.deliver(order(f"evt_last_{number}", order_id=f"last{number}"))
            assert "applied" == answer.json()["outcome"]
        assert 0 == shop.app.allowance.taken
    assert 0 == engine.pool.checkedout()  # type: ignore[attr-defined]


async def broken_off(shop: Receiving, number: int) -> None:
    try:
        async with asyncio.timeout(0.001 + number * 0.0004):
            await shop.deliver(order(f"evt_{number}", order_id=f"o{number}"))
    except (TimeoutError, httpx.TransportError):
        return


async def test_a_bug_of_ours_over_strange_content_is_quarantine(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No sender is told that our reader broke: the delivery is kept, and answered (P17)."""

    def broken(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(envelope, "read_delivery", broken)
    async with receiving(engine, tmp_path) as shop:
        answer = await shop.deliver(order())

        assert (200, "quarantined") == (answer.status_code, answer.json()["outcome"])
        assert {"quarantine": 1} == await shop.counts()


async def test_every_answer_is_logged_and_no_content_is(
    engine: AsyncEngine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """One line a delivery, with what an operator asks for, without bodies or headers (P18)."""
    async with receiving(engine, tmp_path) as shop:
        await shop.deliver(order(email="private@example.com"))
        await shop.post(b"private body", headers={"X-Signature": "private value"})
    log = "".join(capfd.readouterr())

    assert 2 == log.count("receiver.answered")
    assert "evt_1" in log
    assert "applied" in log
    assert "private" not in log


async def test_a_wire_limit_and_an_inflated_limit_are_the_same(engine: AsyncEngine, tmp_path: Path):
    """A body at the limit may come compressed; one beyond it may not."""
    configuration = with_sender('max_body = "4KiB"') + (
        '\n[senders.shop.signature]\nencodings = ["gzip"]\n'
    )
    async with receiving(engine, tmp_path, configuration) as shop:
        for size, status in ((4096, 200), (4097, 413)):
            body = body_of(order(pad=""))
            body = body_of(order(pad="x" * (size - len(body))))
            assert size == len(body)
            answer = await shop.deliver(gzip.compress(body), **{"Content-Encoding": "gzip"})
            assert status == answer.status_code


CLAIM = text(
    "insert into reconciler.processed_events (sender, event_id, event_type, outcome, body_digest)"
    " values ('shop', 'evt_1', 'order.paid', 'applied', 'x')"
)


async def until_blocked(engine: AsyncEngine) -> None:
    """Wait until somebody waits for a lock in this database."""
    async with asyncio.timeout(5), engine.connect() as connection:
        while not await connection.scalar(
            text(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock'"
            )
        ):
            await connection.rollback()

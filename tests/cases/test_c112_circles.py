"""Listings that never end, or that say "no data" where there is an outage: bounded, and seen."""

from collections.abc import Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.polling.report import End
from reconciler.polling.slots import Mode
from tests.cases.listing import STYLES, Paged, at, listed
from tests.polling.server import Reply, Request
from tests.polling.world import World, a_world

pytestmark = pytest.mark.anyio

BROKEN = Reply(body=b"<html>")
MOST = 120  #: requests of one run over a listing that never ends


def fill(shop: Paged, count: int = 6) -> None:
    for number in range(count):
        shop.put(f"ord_{number}", version=1, changed=at(600 - number))


def ignoring(shop: Paged) -> Callable[[Request], Reply]:
    """The parameter is lost on the way: every request is answered by the first page."""
    first: list[Request] = []

    def answer(request: Request) -> Reply:
        first.append(request)
        return shop.paged(first[0])

    return answer


def stuck(shop: Paged) -> Callable[[Request], Reply]:
    """The first page is right; the second names itself as the next one."""
    seen: list[Reply] = []

    def answer(request: Request) -> Reply:
        if len(seen) < 2:
            seen.append(shop.paged(request))
        return seen[-1]

    return answer


def two(shop: Paged) -> Callable[[Request], Reply]:
    """Two pages lead to each other."""
    seen: list[Reply] = []
    count = 0

    def answer(request: Request) -> Reply:
        nonlocal count
        if len(seen) < 2:
            seen.append(shop.paged(request))
        count += 1
        return seen[(count - 1) % 2]

    return answer


def beyond(shop: Paged) -> Callable[[Request], Reply]:
    """After the end the last page comes again and again, and always promises more."""
    last: list[Reply] = []

    def answer(request: Request) -> Reply:
        try:
            reply = shop.paged(request)
        except (ValueError, IndexError):
            return last[-1]
        if isinstance(reply.json, dict) and reply.json["data"]:
            last.append(Reply(json={**reply.json, "more": True}, headers=reply.headers))
        return last[-1]

    return answer


@pytest.mark.parametrize(
    ("style", "lie"),
    [
        *((style, ignoring) for style in STYLES),
        *((style, lie) for style in ("cursor", "page", "link") for lie in (stuck, two, beyond)),
    ],
)
async def test_a_listing_that_never_ends(
    engine: AsyncEngine, style: str, lie: Callable[[Paged], Callable[[Request], Reply]]
) -> None:
    """
    Whatever the style and the circle: after a few requests the run fails and says so, what was
    listed is held, and the watermark is where it was.
    """
    shop = Paged(style=style, size=2)
    fill(shop)
    says_more = listed(style)
    says_more["pagination"] = {**STYLES[style], "more": "more"}
    answer = lie(shop)

    async def lying(request: Request) -> Reply:
        return answer(request)

    shop.answer = lying  # type: ignore[method-assign]
    async with a_world(engine, shop=shop, listed=says_more) as world:
        report = await world.increment()
        assert End.PAGE_BROKEN == report.end
        assert report.error
        assert len(world.asked()) < MOST
        slot = await world.slot()
        assert (None, 1) == (slot.watermark, slot.failures)
        assert slot.due_at > await world.value("select clock_timestamp()")
        assert {"ord_0", "ord_1"} <= (await world.held()).keys()


async def test_a_circle_is_found_over_runs_that_are_cut_short(engine: AsyncEngine) -> None:
    """Each run gets two pages on before its connection breaks: the way is kept in between."""
    shop = Paged(size=1)
    circle = ["p1", "p2", "p3", "p4", "p5"]
    count = 0

    async def answer(request: Request) -> Reply:
        nonlocal count
        count += 1
        if count % 3 == 0:
            return BROKEN
        number = circle.index(request.query.get("cursor", "p1"))
        order = {**shop.put(f"ord_{number}", version=1), "version": count}
        return Reply(json={"data": [order], "next": circle[(number + 1) % 5]})

    shop.answer = answer  # type: ignore[method-assign]
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        for _ in range(20):
            report = await world.increment()
            if "circles" in (report.error or ""):
                break
        assert "circles" in (report.error or "")
        assert (await world.slot()).watermark is None


NO_DATA: dict[str, Reply] = {
    "an error inside": Reply(json={"success": False, "error": {"code": "down"}}),
    "an error and null": Reply(json={"data": None, "errors": [{"message": "down"}]}),
    "an error text in its place": Reply(json={"data": "temporarily unavailable"}),
    "an object in its place": Reply(json={"data": {}}),
    "a list of errors": Reply(json=[{"error": "down"}]),
    "a page for people": Reply(body=b"<html>down</html>", headers={"Content-Type": "text/html"}),
    "nothing": Reply(status=204, body=b""),
    "nothing, and 200": Reply(body=b""),
    "null": Reply(body=b"null"),
    "half of it": Reply(body=b'{"data":[{"id":"ord_1","version"'),
    "another member": Reply(json={"items": []}),
    "two documents": Reply(body=b'{"data":[]}{"data":[]}'),
    "elsewhere": Reply(status=302, headers={"Location": "/login"}),
    "not found": Reply(status=404, json={"data": []}),
}


@pytest.mark.parametrize(("page", "what"), [(at % 2, what) for at, what in enumerate(NO_DATA)])
async def test_an_outage_is_no_empty_listing(engine: AsyncEngine, what: str, page: int) -> None:
    """
    On the first page or in the middle, in a full scan and an incremental one: the run fails, what
    was read counts, nothing is missed, nothing moves, and the next run makes it good.
    """
    shop = Paged(size=2)
    async with a_world(engine, shop=shop, listed=listed("cursor"), baseline=False) as world:
        fill(shop, 5)
        shop.lies = [*[None] * page, NO_DATA[what], NO_DATA[what]]
        report = await world.scan()
        assert End.COMPLETED != report.end
        assert 2 * page == len(await world.held())
        born = "select completed_at from reconciler.baselines"
        assert await world.value(born) is None  # what follows is still history
        shop.lies = []
        assert End.COMPLETED == (await world.scan()).end
        assert 5 == len(await world.held())

        for number in range(5):
            shop.put(f"ord_{number}", version=2, changed=at(60 - number))
        mark = await watermark(world)
        shop.lies = [*[None] * page, NO_DATA[what], NO_DATA[what]]
        report = await world.increment()
        assert End.COMPLETED != report.end
        assert mark == await watermark(world)
        shop.lies = []
        await world.increment()
        assert {2} == set((await world.held()).values())
        assert 0 == await world.value("select count(*) from reconciler.fetch_requests")


async def watermark(world: World) -> str | None:
    slot = await world.slot(Mode.INCREMENTAL)
    return slot.watermark if slot else None


@pytest.mark.parametrize("what", [name for name in NO_DATA if name != "not found"])
async def test_an_outage_is_no_deletion_of_one_resource(engine: AsyncEngine, what: str) -> None:
    """Asked for one order, the sender answers the same: it fails, and the order stays."""
    shop = Paged()
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        await world.webhook(shop.put("ord_1", version=1))
        shop.lies = [NO_DATA[what]]
        told = await world.reconcile("ord_1")
        assert "failed" == told["result"]
        assert {"ord_1": 1} == await world.held()


@pytest.mark.parametrize("poison", ['"version":true', '"note":"\\u0000"'])
async def test_where_pages_go_on_behind_the_last_id_a_poisoned_page_is_not_the_end(
    engine: AsyncEngine, poison: str
) -> None:
    """
    A whole page that cannot be used, in the middle; and as the last one, where it stands alone.
    Behind one without any id nobody can go on: that is said, and not taken for the end.
    """
    shop = Paged(style="last_id", size=1)
    say_nothing = listed("last_id")
    say_nothing["pagination"] = {"style": "last_id", "param": "after"}
    keys = ["ord_1", "ord_9", "ord_2", "ord_8"]
    rest = ['"version":1,"status":"new"', poison] * 2
    pages = [f'{{"id":"{key}",{more}}}'.encode() for key, more in zip(keys, rest, strict=True)]

    async def answer(request: Request) -> Reply:
        after = request.query.get("after")
        start = keys.index(after) + 1 if after else 0
        return Reply(body=b'{"data":[%b]}' % b"".join(pages[start : start + 1]))

    shop.answer = answer  # type: ignore[method-assign]
    async with a_world(engine, shop=shop, listed=say_nothing) as world:
        report = await world.increment()
        assert (End.COMPLETED, 2, 2) == (report.end, report.corrected, report.quarantined)
        assert {"ord_1": 1, "ord_2": 1} == await world.held()
        pages[1] = b'{"version":1}'
        report = await world.increment()
        assert End.PAGE_BROKEN == report.end

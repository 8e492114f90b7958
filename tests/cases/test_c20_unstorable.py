"""Texts that PostgreSQL cannot hold: kept once, whole, and no neighbour is harmed."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.receiver.envelope import MalformedError
from tests.cases.house import a_house, as_bytes, item, order

pytestmark = pytest.mark.anyio

NUL, LONE = "a\u0000b", "a\ud800b"
EVENTS = {
    "in a field": order("e1", status=NUL),
    "in what nobody reads": {**order("e2"), "extra": {"note": [NUL]}},
    "in a name": {**order("e3"), "extra": {NUL: 1}},
    "in a name of the state": order("e4", **{NUL: 1}),
    "in the event's id": order(NUL),
    "in its type": order("e5", type_=f"order.{NUL}"),
    "in a type that nobody knows": {"id": "e6", "type": NUL},
    "in the key": order("e7", NUL),
    "in the version": order("e8", version=NUL),
    "in the time": {**order("e9"), "created_at": NUL},
    "half a pair": order("e10", status=LONE),
    "half a pair in a name": {**order("e11"), LONE: 1},
    "half a pair as id": order(LONE),
    "the other half": order("e12", status="\udc00\ud800"),
    "too deep": b'{"id":"e13","type":"order.x","data":%b1%b}' % (b"[" * 300, b"]" * 300),
    "very deep": b'{"id":"e14","type":"order.x","data":%b%b}' % (b"[" * 20000, b"]" * 20000),
    "no number": b'{"id":"e15","type":"order.x","data":{"order_id":"k","version":1,"amount":NaN}}',
    "endless": b'{"id":"e16","type":"order.x","data":{"version":1,"amount":-Infinity}}',
    "too many digits": b'{"id":"e17","type":"order.x","data":{"amount":1%b}}' % (b"0" * 4400),
}
HARMLESS = {
    "an escape that is none": order("h1", "h1", status="a\\u0000b"),
    "the last that is not NUL": order("h2", "h2", status="\x01\x1f\x7f"),
    "a whole pair": order("h3", "h3", status="\U0001f389"),
    "not a character": order("h4", "h4", status="\ufffe\uffff"),
    "three bytes each": order("h5", "h5", status="\u20ac" * 9000),
}


async def test_each_is_kept_the_first_time_and_never_asked_for_again(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    By itself: 200 and quarantine, with the very bytes, as often as it comes one copy; and what
    only looks alike is applied.
    """
    async with a_house(engine, tmp_path) as house:
        for event in EVENTS.values():
            for _ in range(2):
                assert "quarantined" == await house.outcome(event)
        kept = {
            bytes(body): (failures, fault)
            for body, failures, fault in await house.rows(
                "select body, failures, fault from quarantine"
            )
        }
        assert {as_bytes(event) for event in EVENTS.values()} == kept.keys()
        assert {2} == {failures for failures, _ in kept.values()}
        assert all(fault for _, fault in kept.values())
        for event in HARMLESS.values():
            assert "applied" == await house.outcome(event)
        assert len(HARMLESS) == len(await house.held())


async def test_in_a_batch_its_neighbours_are_applied(engine: AsyncEngine, tmp_path: Path) -> None:
    """Whatever stands in one event of a delivery, the events before and after it happen."""
    async with a_house(engine, tmp_path, batches=True) as house:
        neighbours = [order(f"n{number}", f"n{number}") for number in range(len(EVENTS) + 1)]
        mixed = [neighbours[0]]
        for event, neighbour in zip(EVENTS.values(), neighbours[1:], strict=True):
            mixed += [event, neighbour]
        expected = ["applied"] + ["quarantined", "applied"] * len(EVENTS)
        assert expected == await house.outcomes(mixed)
        assert len(neighbours) == len(await house.held())
        assert len(EVENTS) == (await house.counts())["quarantine"]

        again = await house.outcomes(mixed)
        assert ["duplicate"] + ["quarantined", "duplicate"] * len(EVENTS) == again
        assert len(EVENTS) == (await house.counts())["quarantine"]


async def test_outside_the_events_the_delivery_is_kept_whole(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """There is nobody to blame but the delivery: no half of it is believed."""
    async with a_house(engine, tmp_path, batches=True) as house:
        good = as_bytes(order("e1"))
        for body in (
            b'{"note":"\\u0000","events":[%b]}' % good,
            b'{"events":[%b],"x":NaN}' % good,
            b'{"events":[%b]' % good,
            b'{"events":{"a\\u0000":%b}}' % good,
        ):
            answer = await house.deliver(body)
            assert (200, "quarantined") == (answer.status_code, answer.json()["outcome"])
        assert {"quarantine": 4} == await house.counts()


async def test_in_a_listing_its_neighbours_are_corrected(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """The same in a page of the listing; the scan ends well, and the item can be seen."""
    async with a_house(engine, tmp_path) as house:
        bad = [
            item("b1", status=NUL),
            item(NUL),
            item("b3", version=NUL),
            {**item("b4"), NUL: NUL},
            item("b5", status=LONE),
            b'{"id":"b6","version":1,"status":%b1%b}' % (b"[" * 20000, b"]" * 20000),
        ]
        house.listed = [item("g1"), *bad, item("g2")]
        for _ in range(2):
            done = await house.reconcile()
            assert [True] == [scan.completed for scan in done.scans]
        assert {"g1": 1, "g2": 1} == await house.held()
        assert len(bad) == (await house.counts())["quarantine"]


async def test_in_a_read_it_fails_that_read_alone(engine: AsyncEngine, tmp_path: Path) -> None:
    """Asked for by hand it says why; what we hold stays, and another resource is read."""
    async with a_house(engine, tmp_path) as house:
        house.got = {"ord_42": item(version=2, status=NUL), "other": item("other", version=2)}
        await house.outcome(order("e1"))
        (failed,) = (await house.reconcile("ord_42")).items
        (fine,) = (await house.reconcile("other")).items
        assert ("failed", "corrected") == (failed["result"], fine["result"])
        assert "NUL" in failed["error"]
        assert {"ord_42": 1, "other": 2} == await house.held()


async def test_a_trial_and_a_replay_say_the_same(engine: AsyncEngine, tmp_path: Path) -> None:
    """`try` names the fault without writing it; bytes read again are as unusable as before."""
    async with a_house(engine, tmp_path) as house:
        for event in EVENTS.values():
            (told,) = await house.tried(event)
            assert "quarantined" == told["outcome"]
            assert told["fault"]
        assert {} == await house.counts()
        reread = house.assembly.rules.reread
        with pytest.raises(MalformedError, match="NUL"):
            reread("shop", as_bytes(EVENTS["in a field"]), {}, None)


async def test_a_trial_of_a_batch_tells_each_event_in_its_place(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    async with a_house(engine, tmp_path, batches=True) as house:
        mixed = {"events": [order("e1", status=NUL), order("n1", "n1"), order("e2", version="x")]}
        told = await house.tried(mixed)
        assert ["quarantined", "applied", "quarantined"] == [each["outcome"] for each in told]
        assert [None, "n1", "e2"] == [each["event_id"] for each in told]
        assert {} == await house.counts()

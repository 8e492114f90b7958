"""Stories of how a listing goes on, and of answers that are no pages."""

import json
from decimal import Decimal

import pytest

from reconciler.expressions import compile_expression
from reconciler.polling.answer import Poison, read_page
from reconciler.polling.errors import PageBrokenError
from reconciler.polling.listing import compile_getting, compile_listing
from reconciler.polling.pagination import (
    Page,
    Position,
    next_position,
    query_of,
)
from reconciler.settings.models import ResourceSettings

URL = "https://api.shop.example/v1/orders?limit=2"


def pagination_of(settings):
    listed = {"path": "/v1/orders", "items": "data", "pagination": settings}
    resource = ResourceSettings(key="id", version="version", list=listed)
    problems = []
    listing = compile_listing(resource, "senders.shop.resources.order", problems)
    assert [] == problems
    return listing.pagination


def walk(settings, *pages, links=()):
    """Go through *pages* (answers with `data`); return the query of each, and whether it ended."""
    pagination = pagination_of(settings)
    position: Position | None = Position()
    queries = []
    for number, answer in enumerate(pages):
        assert position is not None, "it ended too early"
        query = query_of(pagination, position)
        queries.append(position.text if query is None else query)
        items = answer.get("data", [])
        page = Page(
            answer=answer,
            count=len(items),
            last_key=items[-1] if items else None,
            url=URL,
            link_next=links[number] if number < len(links) else None,
        )
        position = next_position(pagination, position, page)
        if position is not None:
            position = Position.from_json(json.loads(json.dumps(position.to_json())))
    return queries, position is None


def test_cursors():
    """The cursor of one answer is asked for next; null, "" and false end it. Integers are fine."""
    settings = {"style": "cursor", "next": "meta.next", "param": "after"}
    for end in (None, "", False):
        pages = [
            {"data": ["a"], "meta": {"next": "c1"}},
            {"data": [], "meta": {"next": 7}},
            {"data": ["b"], "meta": {"next": end}},
        ]

        assert ([{}, {"after": "c1"}, {"after": "7"}], True) == walk(settings, *pages)


@pytest.mark.parametrize("cursor", [True, [], {"a": 1}, Decimal("1.5"), "x" * 9000])
def test_a_cursor_that_is_none_is_a_broken_page(cursor):
    """What cannot be a cursor is not guessed at."""
    with pytest.raises(PageBrokenError):
        walk({"style": "cursor", "next": "next", "param": "p"}, {"data": ["a"], "next": cursor})


def test_page_numbers_go_on_until_an_empty_page():
    """A short page ends nothing: the sender may cap sizes as it likes."""
    settings = {"style": "page", "param": "page", "first": 0, "size_param": "limit", "size": 50}
    queries, ended = walk(settings, {"data": ["a", "b"]}, {"data": ["c"]}, {"data": []})

    assert ended
    assert [{"limit": "50", "page": str(number)} for number in range(3)] == queries


def test_more_decides_where_it_is_said():
    """`more` false ends it, a cursor or not; null leaves it to the way on."""
    settings = {"style": "page", "param": "page", "more": "has_more"}
    pages = [
        {"data": ["a"], "has_more": True},
        {"data": [], "has_more": True},
        {"data": ["b"], "has_more": False},
    ]
    assert ([{"page": "1"}, {"page": "2"}, {"page": "3"}], True) == walk(settings, *pages)

    settings = {"style": "cursor", "next": "next", "param": "p", "more": "has_more"}
    assert walk(settings, {"data": ["a"], "next": "x", "has_more": False})[1]
    assert not walk(settings, {"data": ["a"], "next": "x"})[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"style": "cursor", "next": "next", "param": "p"},
        {"style": "offset", "param": "p"},
        {"style": "last_id", "param": "p"},
        {"style": "next_url", "next": "next"},
        {"style": "link"},
    ],
)
def test_more_without_a_way_on_is_a_broken_page(settings):
    """The rest would silently never be read."""
    with pytest.raises(PageBrokenError, match="no way on"):
        walk({**settings, "more": "has_more"}, {"data": [], "has_more": True})


def test_more_must_be_a_boolean():
    """ "false" is not false."""
    settings = {"style": "page", "param": "page", "more": "has_more"}
    with pytest.raises(PageBrokenError):
        walk(settings, {"data": ["a"], "has_more": "false"})


def test_offsets_overlap_by_one():
    """C108: what a deletion shifts over the boundary is still seen on the next page."""
    pages = [{"data": ["a", "b", "c"]}, {"data": ["c", "d", "e"]}, {"data": ["e"]}]
    queries, ended = walk({"style": "offset", "param": "skip"}, *pages)

    assert ended
    assert [{"skip": "0"}, {"skip": "2"}, {"skip": "4"}] == queries


def test_offsets_of_single_items_still_end():
    """Pages of one item cannot overlap and get on."""
    pages = [{"data": ["a"]}, {"data": ["b"]}, {"data": []}]
    queries, ended = walk({"style": "offset", "param": "skip"}, *pages)

    assert ended
    assert ["0", "1", "2"] == [query["skip"] for query in queries]


def test_last_ids():
    """The key of the last item is where the next page begins."""
    pages = [{"data": ["a", "b"]}, {"data": []}]

    assert ([{}, {"starting_after": "b"}], True) == walk(
        {"style": "last_id", "param": "starting_after"}, *pages
    )


def test_next_urls_stay_on_their_origin():
    """A relative or absolute URL of the same origin is followed whole; any other is refused."""
    settings = {"style": "next_url", "next": "next"}
    pages = [
        {"data": ["a"], "next": "/v1/orders?page=2"},
        {"data": ["a"], "next": "https://api.shop.example:443/v1/orders?page=3"},
        {"data": ["a"], "next": None},
    ]
    queries, ended = walk(settings, *pages)
    assert ended
    assert "https://api.shop.example/v1/orders?page=2" == queries[1]
    assert "https://api.shop.example:443/v1/orders?page=3" == queries[2]

    for bad in [
        "http://api.shop.example/x",
        "https://169.254.169.254/",
        "//evil.example/",
        "https://api.shop.example:444/",
        "https://u@api.shop.example/",
        "https://[bad",
    ]:
        with pytest.raises(PageBrokenError):
            walk(settings, {"data": ["a"], "next": bad})
        with pytest.raises(PageBrokenError):
            walk({"style": "link"}, {"data": ["a"]}, links=[bad])


def test_links_are_followed():
    """The Link header's `next`, as long as there is one."""
    queries, ended = walk(
        {"style": "link"}, {"data": ["a"]}, {"data": ["a"]}, links=["/v1/orders?page=2"]
    )

    assert ended
    assert [{}, "https://api.shop.example/v1/orders?page=2"] == queries


def test_without_pagination_a_listing_is_one_page():
    """Nothing is asked for twice."""
    assert ([{}], True) == walk(None, {"data": ["a"]})


def test_a_wrong_expression_is_a_problem_with_its_place():
    """What cannot be compiled is told with its key, all at once."""
    listed = {
        "path": "/v1/orders",
        "items": "data[",
        "pagination": {"style": "cursor", "next": "1.5", "param": "c"},
    }
    got = {"path": "/v1/orders/{{ id }}"}
    resource = ResourceSettings(key="id", version="version", list=listed, get=got)
    problems = []
    compile_listing(resource, "senders.shop.resources.order", problems)
    compile_getting(resource, "senders.shop.resources.order", problems)

    assert ["list.items", "list.pagination.next", "get.path"] == [
        problem.key.removeprefix("senders.shop.resources.order.") for problem in problems
    ]


DATA = compile_expression("data")


@pytest.mark.parametrize(
    "body",
    [
        b'{"success":false,"error":{"code":"down"}}',
        b"<html>502</html>",
        b"",
        b'{"data":null}',
        b'{"data":{"a":1}}',
        b'{"data":"[]"}',
        b"[]",
        b"null",
        b'{"data":[',
        b'{"data":[1],"total":NaN}',
        b"[" * 20000 + b"]" * 20000,
        b'\xef\xbb\xbf{"data":[]}',
    ],
)
def test_what_is_no_page_of_the_listing_is_broken(body):
    """C114: an outage never looks like "no data"."""
    with pytest.raises(PageBrokenError):
        read_page(body, DATA)


def test_a_list_may_be_the_whole_answer():
    """`items = ""`."""
    assert [1, 2] == read_page(b"[1,2]", None).items
    with pytest.raises(PageBrokenError):
        read_page(b'{"data":[]}', None)


POISONS = [
    b'{"note":"a\\u0000b"}',
    b'{"a\\u0000b":1}',
    b'{"note":"\\ud800"}',
    b'{"note":"\xff\xfe"}',
    b'{"x":NaN}',
    b'{"x":-Infinity}',
    b'{"x":1e99999}',
    b'{"x":' + b"9" * 5000 + b"}",
    b'{"x":' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"x":' + b"[" * 20000 + b'"]"' + b"]" * 20000 + b"}",
]


@pytest.mark.parametrize("poison", POISONS)
def test_a_poisoned_item_takes_no_neighbour_down(poison):
    """C20 and its kin: the item is kept apart, the others come out exactly."""
    good = b'{"id":"ord_1","amount":12.30,"big":9007199254740993,"quote":"\\"[{\xc3\xa9"}'
    page = read_page(b'{"data":[' + good + b"," + poison + b"," + good + b'],"next":"c2"}', DATA)

    first, bad, last = page.items
    assert first == last
    assert Decimal("12.30") == first["amount"]
    assert 9007199254740993 == first["big"]
    assert '"[{é' == first["quote"]
    assert isinstance(bad, Poison)
    assert bad.fault
    assert bad.raw
    assert "c2" == page.whole["next"]


def test_the_kept_bytes_say_what_came():
    """What a person finds in quarantine is the item, not our idea of it."""
    page = read_page(b'{"data":[{"id":"ord_1","x":NaN,"y":1.50}]}', DATA)

    assert b'{"id":"ord_1","x":NaN,"y":1.50}' == page.items[0].raw

"""A listing that pages in every style, in any order, and can be told to misbehave."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.polling.server import Reply, Request
from tests.polling.world import Shop

STYLES: dict[str, dict[str, Any]] = {
    "cursor": {"style": "cursor", "next": "next", "param": "cursor"},
    "page": {"style": "page", "param": "page"},
    "offset": {"style": "offset", "param": "offset"},
    "last_id": {"style": "last_id", "param": "after", "more": "more"},
    "next_url": {"style": "next_url", "next": "next"},
    "link": {"style": "link"},
}
ORDERS = ("oldest", "newest", "unknown")
NOW = datetime.now(UTC).replace(microsecond=0)


def at(seconds_ago: float) -> datetime:
    return NOW - timedelta(seconds=seconds_ago)


def listed(style: str, order: str = "unknown", **more: Any) -> dict[str, Any]:
    """The `list` of a kind that is paged in *style*, and said to be in *order*."""
    return {"pagination": STYLES[style], "order": order, **more}


@dataclass(kw_only=True)
class Paged(Shop):
    """The sender; *sorting* is what it does, whatever it says."""

    style: str = "cursor"
    sorting: str = "oldest"
    since_of: Callable[[str], str] = str  #: how the parameter is read
    gets: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Reply:
        if self.lies and (lie := self.lies.pop(0)) is not None:
            return lie
        if request.path == "/v1/orders":
            reply = self.paged(request)
            if self.after_request is not None:
                self.after_request()
            return reply
        key = request.path.rpartition("/")[2]
        self.gets.append(key)
        found = self.orders.get(key)
        return Reply(json=found) if found else Reply(status=404, json={})

    def sorted(self, since: str) -> list[dict[str, Any]]:
        """What changed since, ties by id, in the order of this sender."""
        since = self.since_of(since) if since else ""
        found = [
            order
            for key, order in self.orders.items()
            if key not in self.hidden and (order["updated_at"] or "9") >= since
        ]
        match self.sorting:
            case "unknown":
                found.sort(key=lambda order: hash_of(order["id"]))
            case sorting:
                found.sort(
                    key=lambda order: (order["updated_at"] or "", order["id"]),
                    reverse=sorting == "newest",
                )
        return found

    def paged(self, request: Request) -> Reply:
        query = request.query
        found = self.sorted(query.get("updated_since", ""))
        keys = [order["id"] for order in found]
        match self.style:
            case "page":
                start = (int(query["page"]) - 1) * self.size
            case "offset":
                start = int(query["offset"])
            case "last_id":
                start = keys.index(query["after"]) + 1 if "after" in query else 0
            case _:
                cursor = query.get("cursor")
                start = keys.index(cursor) + 1 if cursor else 0
        page = found[start : start + self.size]
        more = start + self.size < len(found)
        body: dict[str, Any] = {"data": page, "more": more}
        headers = {}
        if more:
            query = {**query, "cursor": page[-1]["id"]}
            way = "/v1/orders?" + "&".join(f"{name}={value}" for name, value in query.items())
            body["next"] = way if self.style == "next_url" else page[-1]["id"]
            if self.style == "link":
                headers = {"Link": f'<{way}>; rel="next"'}
        return Reply(json=body, headers=headers)


def hash_of(key: str) -> str:
    """An order that has nothing to do with time."""
    return key[::-1]

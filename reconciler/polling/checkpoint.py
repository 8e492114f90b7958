"""How far a pass is: all that the next run needs to go on where this one ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.polling.errors import PageBrokenError
from reconciler.polling.pagination import Position
from reconciler.polling.trail import Trail
from reconciler.polling.watermark import Reach

MAX_PAGES = 1_000_000  #: of one pass
MAX_EMPTY = 100  #: pages without an item, one after the other
SAME_CONTENT = 2  #: how often a page may be met again while the listing shifts under us


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One pass over a listing, between two pages."""

    position: Position | None = field(default_factory=Position)  #: None: all pages are read
    since: str | None = None  #: what the pass asks for changes since; the same on every page
    reach: Reach = field(default_factory=Reach)
    pages: int = 0
    empty: int = 0
    way: Trail = field(default_factory=Trail)  #: by position
    content: Trail = field(default_factory=Trail)  #: by what was on the pages
    resumed: bool = False  #: what the pages before had is not known any more
    refused: int = 0  #: how often incremental requests have been refused since one was answered
    round: int = 1  #: a listing whose pages shift under us is read more than once
    turned: int = 0  #: pages of this round
    tries: int = 0  #: that have failed at this place

    @property
    def begun(self) -> bool:
        return self.pages > 0

    def after(self, following: Position | None, *, content: str) -> "Checkpoint":
        """
        The pass one page later; *content* is a digest of the page, "" of an empty one.

        Raises PageBrokenError where the listing does not get on: circles, too many pages,
        or too many empty ones in a row.
        """
        empty = self.empty + 1 if not content else 0
        if following is not None and (self.pages + 1 >= MAX_PAGES or empty >= MAX_EMPTY):
            what = f"{MAX_EMPTY} empty pages" if empty >= MAX_EMPTY else f"{MAX_PAGES} pages"
            raise PageBrokenError(f"the listing does not end: {what}")
        trodden = self.content
        if content:
            trodden = trodden.step(content, meetings_allowed=SAME_CONTENT)
        return replace(
            self,
            position=following,
            pages=self.pages + 1,
            turned=self.turned + 1,
            empty=empty,
            way=self.way if following is None else self.way.step(following.text or ""),
            content=trodden,
            refused=0,
            tries=0,
        )

    def again(self) -> "Checkpoint":
        """The same pass, from the first page once more."""
        return replace(
            self,
            position=Position(),
            way=Trail(),
            content=Trail(),
            empty=0,
            round=self.round + 1,
            turned=0,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "position": self.position.to_json() if self.position else None,
            "since": self.since,
            "reach": self.reach.to_json(),
            "pages": self.pages,
            "empty": self.empty,
            "way": self.way.to_json(),
            "content": self.content.to_json(),
            "refused": self.refused,
            "round": self.round,
            "turned": self.turned,
            "tries": self.tries,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> "Checkpoint":
        """
        Go on from what an earlier run has left; with nothing, from the first page.

        So too with what another version of ours has left, during an upgrade or after going back.
        """
        try:
            return cls._from_json(value) if value else cls()
        except (KeyError, TypeError, ValueError):
            return cls()

    @classmethod
    def _from_json(cls, value: Mapping[str, Any]) -> "Checkpoint":
        position = value["position"]
        return cls(
            position=Position.from_json(position) if position is not None else None,
            since=value["since"],
            reach=Reach.from_json(value["reach"]),
            pages=value["pages"],
            empty=value["empty"],
            way=Trail.from_json(value["way"]),
            content=Trail.from_json(value["content"]),
            resumed=value["pages"] > 0,
            refused=value["refused"],
            round=value["round"],
            turned=value["turned"],
            tries=value.get("tries", 0),
        )

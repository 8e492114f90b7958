"""Whether a listing must be read once more, because its pages may have shifted under us."""

from dataclasses import dataclass, field

from reconciler.polling.checkpoint import Checkpoint
from reconciler.polling.listing import Listing
from reconciler.polling.seen import Seen
from reconciler.polling.slots import Mode

MOST_ROUNDS = 3
SHIFTING = frozenset({"page", "offset"})  #: styles whose pages are counted, not anchored


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The keys of a pass, by round."""

    listing: Listing
    mode: Mode
    in_baseline: bool
    before: Seen = field(default_factory=Seen)  #: of the rounds before this one
    now: Seen = field(default_factory=Seen)  #: of this one
    fresh: int = 0  #: keys of this round that no round before had

    @property
    def shifts(self) -> bool:
        return self.listing.pagination.style in SHIFTING

    def saw(self, keys: list[str], *, overlapping: bool, checkpoint: Checkpoint) -> None:
        """Note the keys of one page; the first of an overlapping one was seen by intent."""
        for key in keys[1:] if overlapping else keys:
            if checkpoint.round > 1 and key not in self.before:
                self.fresh += 1
            self.now.add(key)

    def needs_another(self, checkpoint: Checkpoint) -> bool:
        """
        Say whether the pass, all of whose pages were read, has to be read once more.

        An item that is deleted, or that moves to the end because it changes, pulls all others
        forward: one of them crosses a page's boundary just behind us and is never seen. A key
        that was listed twice gives that away. A baseline, and what changed since the watermark,
        are read again in any case: nothing else would notice what they miss.
        """
        if not self.shifts or checkpoint.turned < 2 or checkpoint.round >= MOST_ROUNDS:
            return False
        if checkpoint.round > 1:
            return self.fresh > 0
        return self.mode is Mode.INCREMENTAL or self.in_baseline or self.now.has_one_twice()

    def begin(self) -> None:
        """Begin the next round."""
        self.before.update(self.now)
        self.now.clear()
        self.fresh = 0

    def clear(self) -> None:
        """Begin a pass."""
        self.before.clear()
        self.begin()
        self.before.clear()

    def all(self) -> Seen:
        """The keys of all rounds."""
        self.begin()
        return self.before

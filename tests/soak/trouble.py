"""What goes wrong in a soak, drawn from one seed, and how often each kind did."""

import random
from collections import Counter
from dataclasses import dataclass, field

#: on the way of a webhook
LOST, REPEATED, CUT, LEFT, LATE = "lost", "repeated", "cut", "left", "late"
#: at the destination
BUSY, REFUSED, UNHEARD, UNANSWERED, SLOW = "busy", "limited", "unheard", "unanswered", "slow"
#: at the sender's API
BROKEN, HUNG_UP = "broken page", "page cut"
KILLED = "connection killed"

ORDERS = (LOST, REPEATED, CUT, LEFT, LATE)
REFUNDS = (REPEATED, CUT, LEFT)  #: a fact that no state shows must not be lost
CALLS = (BUSY, REFUSED, UNHEARD, UNANSWERED, SLOW)
PAGES = (BROKEN, HUNG_UP)
EVERY = {*ORDERS, *CALLS, *PAGES, KILLED}


@dataclass
class Trouble:
    """A share of what happens meets one of its kinds of trouble, each as likely."""

    fate: random.Random
    share: float
    met: Counter[str] = field(default_factory=Counter)

    def draw(self, kinds: tuple[str, ...]) -> str | None:
        if self.fate.random() >= self.share:
            return None
        kind = self.fate.choice(kinds)
        self.met[kind] += 1
        return kind

"""What the pretend provider does with a call: drawn from the seed, the key and the arrival."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

FLOOD = 30_000_000  #: bytes of a body that nobody should read
TROUBLED = 3  #: arrivals of one key that may meet trouble


class Meaning(StrEnum):
    """What a caller can know of its call, by what it was answered."""

    DONE = "done"  #: a success was said
    NOT_DONE = "not done"  #: it certainly had no effect, and may be tried again
    OPEN = "open"  #: it may or may not have had one
    REFUSED = "refused"  #: it had none, and never will


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One way to treat a call that is not known by its key already."""

    name: str
    performs: bool  #: whether the call takes effect
    status: int | None  #: what is answered; None: nothing that could be read
    way: str = "whole"  #: how the answer is given; see `provider.py`
    headers: tuple[tuple[str, str], ...] = ()
    stored: bool = False  #: whether the answer, an error, is given to each repetition
    takes: float = 0.0  #: seconds of work

    @property
    def meaning(self) -> Meaning:
        return meaning_of(self.status)


def meaning_of(status: int | None) -> Meaning:
    """What *status* tells, by the rules that are documented; None is no answer."""
    match status:
        case None:
            return Meaning.OPEN
        case status if 200 <= status < 300:
            return Meaning.DONE
        case 425 | 429:
            return Meaning.NOT_DONE
        case 408 | 409:
            return Meaning.OPEN
        case status if 400 <= status < 500:
            return Meaning.REFUSED
        case _:
            return Meaning.OPEN


def _behaviour(
    name: str, status: int | None, *, performs: bool = False, way: str = "whole", takes: float = 0.0
) -> Behaviour:
    return Behaviour(name=name, performs=performs, status=status, way=way, takes=takes)


DONE = _behaviour("done", 200, performs=True)

#: Every spelling of Retry-After, and whether the moment stands in a `Date` of its own.
SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "seconds": "1",
        "fractional": "0.3",
        "padded": "  1  ",
        "zero": "0",
        "negative": "-5",
        "huge": "99999999999999999999",
        "exponent": "1e9",
        "garbage": "soon",
        "empty": "",
        "imf date": "@imf",
        "rfc 850 date": "@rfc850",
        "asctime date": "@asctime",
        "date of 1970": "Thu, 01 Jan 1970 00:00:00 GMT",
        "date of 9999": "Fri, 31 Dec 9999 23:59:59 GMT",
        "no such date": "Mon, 99 Foo 2026 99:99:99 GMT",
    }
)

#: Seconds for which nobody may call again, by the answer; not more than they may be asked to wait.
ASKED_TO_WAIT: Mapping[str, float] = MappingProxyType(
    {
        "429, seconds": 0.4,
        "429, padded": 0.4,
        "429, fractional": 0.3,
        "429, huge": 0.4,
        "429, date of 9999": 0.4,
    }
)

TROUBLES: tuple[tuple[int, Behaviour], ...] = (
    (6, _behaviour("lost before the effect", None, way="closes")),
    (6, _behaviour("lost after the effect", None, performs=True, way="closes")),
    (4, _behaviour("reset before the effect", None, way="resets")),
    (4, _behaviour("reset after the effect", None, performs=True, way="resets")),
    (2, _behaviour("never answered", None, way="hangs")),
    (3, _behaviour("answered too late", None, performs=True, way="late")),
    (3, _behaviour("still at it", None, performs=True, way="late", takes=2.5)),
    (2, _behaviour("a head that drips", None, way="drips head")),
    (2, _behaviour("a success whose body drips", 200, performs=True, way="drips")),
    (2, _behaviour("an error whose body drips", 503, way="drips")),
    (2, _behaviour("a success broken off", 200, performs=True, way="breaks off")),
    (2, _behaviour("a success of 30 MB", 200, performs=True, way="floods")),
    (3, _behaviour("an error of 30 MB", 500, way="floods")),
    (2, _behaviour("garbage", None, way="garbage")),
    (4, _behaviour("500 before the effect", 500)),
    (4, _behaviour("500 after the effect", 500, performs=True)),
    (4, _behaviour("503", 503)),
    (2, _behaviour("408", 408)),
    (2, _behaviour("425", 425)),
    *(
        (
            1,
            Behaviour(
                name=f"429, {name}", performs=False, status=429, headers=(("Retry-After", said),)
            ),
        )
        for name, said in SPELLINGS.items()
    ),
)

STORED_500 = Behaviour(name="500, stored", performs=False, status=500, stored=True)
STORED_402 = Behaviour(name="402, stored", performs=False, status=402, stored=True)
MET_BY_ITSELF = ("409, in flight", "422, another body", "replayed", "forgotten in time")


@dataclass(frozen=True, slots=True, kw_only=True)
class MailBehaviour:
    """One way to treat a mail."""

    name: str
    performs: bool
    status: int | None  #: what is answered; None: nothing
    meaning: Meaning  #: a mail server has taken nothing over before the end of the data
    at: str = "end"  #: at which step: `recipient`, `data` or `end`
    way: str = "whole"


TAKEN = MailBehaviour(name="mail taken", performs=True, status=250, meaning=Meaning.DONE)


def _mail(
    name: str,
    meaning: Meaning,
    status: int | None = None,
    *,
    performs: bool = False,
    at: str = "end",
    way: str = "whole",
) -> MailBehaviour:
    return MailBehaviour(
        name=name, performs=performs, status=status, meaning=meaning, at=at, way=way
    )


WITHIN_THE_MAIL = "hung up within the mail"
MAIL_TROUBLES: tuple[MailBehaviour, ...] = (
    _mail("mail taken, no answer", Meaning.OPEN, performs=True, way="closes"),
    _mail("mail taken, reset", Meaning.OPEN, performs=True, way="resets"),
    _mail("mail taken, silence", Meaning.OPEN, performs=True, way="hangs"),
    _mail("mail not taken, no answer", Meaning.OPEN, way="closes"),
    _mail("451 to the mail", Meaning.NOT_DONE, 451),
    _mail("554 to the mail", Meaning.REFUSED, 554),
    _mail("450 to the recipient", Meaning.NOT_DONE, 450, at="recipient"),
    _mail("550 to the recipient", Meaning.REFUSED, 550, at="recipient"),
    _mail("hung up on the recipient", Meaning.NOT_DONE, at="recipient", way="closes"),
    _mail(WITHIN_THE_MAIL, Meaning.NOT_DONE, at="data", way="closes"),
)
MAIL: Mapping[str, MailBehaviour] = MappingProxyType(
    {one.name: one for one in (TAKEN, *MAIL_TROUBLES)}
)
MAIL_TROUBLE = 0.5  #: how probable trouble is at each of a mail's first arrivals


def drawn_mail(seed: int, reference: str, arrival: int) -> MailBehaviour:
    """What the *arrival*-th try (from 1) to hand over a mail meets."""
    dice = random.Random(f"{seed} mail {reference} {arrival}")
    if arrival > TROUBLED or dice.random() >= MAIL_TROUBLE:
        return TAKEN
    return dice.choice(MAIL_TROUBLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How one destination of the provider is."""

    knows_keys: bool = True
    remembers: float = 86400.0  #: seconds
    trouble: float = 0.35  #: how probable trouble is at each of a key's first arrivals
    stubborn: float = 0.0  #: the share of keys that are never answered
    stores_errors: float = 0.0  #: the share of keys whose first answer is an error, for ever
    foreign: float = 0.0  #: the share of keys that somebody else has used before


MANNERS: Mapping[str, Manner] = MappingProxyType(
    {
        "payments": Manner(),
        "lanes": Manner(trouble=0.25),
        "steps": Manner(trouble=0.25),
        "turns": Manner(trouble=0.25),
        "letters": Manner(knows_keys=False, trouble=0.2),
        "forgetful": Manner(remembers=14.0, stubborn=0.3),
        "strict": Manner(stores_errors=0.6, foreign=0.2),
        "mail": Manner(knows_keys=False),
    }
)


def drawn(seed: int, destination: str, key: str, arrival: int) -> Behaviour:
    """What the *arrival*-th call (from 1) under *key* meets, if it is not answered by its key."""
    manner = MANNERS[destination]
    fate = random.Random(f"{seed} {destination} {key}").random()
    if fate < manner.stores_errors:
        return STORED_500 if fate < manner.stores_errors / 2 else STORED_402
    dice = random.Random(f"{seed} {destination} {key} {arrival}")
    if fate > 1 - manner.stubborn:
        performs = fate > 1 - manner.stubborn / 2
        return _behaviour("stubborn", None, performs=performs, way="closes")
    if arrival > TROUBLED or dice.random() >= manner.trouble:
        return DONE
    weights, ways = zip(*TROUBLES, strict=True)
    return dice.choices(ways, weights)[0]


def is_foreign(seed: int, destination: str, key: str) -> bool:
    """Whether somebody else has used *key* before, for something else."""
    return random.Random(f"{seed} {destination} {key} foreign").random() < (
        MANNERS[destination].foreign
    )


def every_name() -> list[str]:
    """All that a long run must have met."""
    names = [DONE.name, *(one.name for _, one in TROUBLES), STORED_500.name, STORED_402.name]
    return [*names, "stubborn", *MET_BY_ITSELF]

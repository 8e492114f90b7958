"""The sentences that one resource's story ends in: how it stands, and what is waited for. Pure."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

NAMED = 3  #: effects of one kind of trouble that are told one by one
LONG = 120  #: characters of a fault
SHORT = 30  #: characters of a status that are worth a place in a sentence
TOLD = {
    "webhook": "a webhook told",
    "feed": "the sender's feed told",
    "correction": "the sender listed it",
    "read": "the sender answered when asked",
    "replay": "a replayed event told",
}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")

Found = Mapping[str, Any]


def sentence(found: Found) -> str:
    """How things stand with one resource, what we wait for, and when the next scan comes."""
    parts = [how_it_stands(found), *effects(found), *waits(found)]
    return "; ".join(parts) + f". {next_look(found)}"


def how_it_stands(found: Found) -> str:
    key, held = found["key"], found["held"]
    if held is None:
        nothing = not found["claims"] and not found["corrections"] and not found["effects"]
        waiting = found["pending_read"] or found["drifts_since"] or found["quarantined"]
        if nothing and not waiting:
            return f"{key} was never seen: no event, no scan and no read has named it"
        return f"nothing is held of {key} yet"
    how = f"as {TOLD.get(held['origin'], held['origin'])} at {clock(held['updated_at'], found)}"
    if held["deleted"]:
        return f"{key} is deleted, last at version {held['version']}, {how}"
    return f"{key} is at version {held['version']}{status(held['state'])}, {how}"


def status(state: Any) -> str:
    """
    What a person would call the state, where the state has such a word.

    >>> status({"status": "paid"}), status({"amount": 1}), status(None)
    (' (paid)', '', '')
    """
    for name in ("status", "state"):
        word = state.get(name) if isinstance(state, Mapping) else None
        if isinstance(word, str) and 0 < len(word) <= SHORT:
            return f" ({word})"
    return ""


def effects(found: Found) -> Iterator[str]:
    """What became of the calls: trouble first, then what is under way, then the last of each."""
    groups: dict[int, list[str]] = {}
    settled: dict[str, tuple[int, str]] = {}
    for entry in found["effects"]:
        rank, text = told(entry, found)
        if rank < SETTLED:
            groups.setdefault(rank, []).append(text)
        else:
            settled[entry["effect"]] = (rank, text)
    for rank, text in settled.values():
        groups.setdefault(rank, []).append(text)
    for rank in sorted(groups):
        yield from groups[rank][-NAMED:]
        if (more := len(groups[rank]) - NAMED) > 0:
            yield f"and {more} more like that"


SETTLED = 4  #: from that rank on, only the last of each effect is told


def told(entry: Found, found: Found) -> tuple[int, str]:
    """The rank of one call in the story, and what became of it."""
    effect, id_ = f"its {entry['effect']}", entry["id"]
    reason = f" ({entry['last_error']})" if entry["last_error"] else ""
    ended = "" if entry["completed_at"] is None else f" at {clock(entry['completed_at'], found)}"
    match entry["state"]:
        case "uncertain":
            shown = f"`reconciler outbox show {id_}`"
            return 0, f"whether {effect} was performed is uncertain{reason}: {shown}"
        case "dead":
            return 1, f"{effect} was given up{ended}{reason}: `reconciler outbox redrive {id_}`"
        case "pending":
            return pending(entry, found)
        case "skipped":
            release = "" if reason == " (key used)" else f": `reconciler outbox redrive {id_}`"
            return 4, f"{effect} was not called{reason}{release}"
        case "delivered":
            if reason:  # it says "delivered, and" what could not be written down of it
                rank, what = 2, f"was {entry['last_error']}: `reconciler outbox show {id_}`"
            else:
                rank, what = 5, f"was delivered{ended}{attempt(entry['attempts'])}"
            return rank, f"{effect} {what}"
        case other:
            return 6, f"{effect} was {other}{ended}"


def pending(entry: Found, found: Found) -> tuple[int, str]:
    effect, error = f"its {entry['effect']}", entry["last_error"]
    if entry["due_at"] is None:
        replay = f"`reconciler events replay {found['sender']} {entry['event_id']}`"
        return 2, f"{effect} could not be rendered ({error}): {replay}"
    after = f", after: {error}" if error else ""
    if entry["waiting_for"] == "answer":
        return 3, f"{effect} is being called{attempt(entry['attempts'])}{after}"
    again = "called again" if entry["attempts"] else "called"
    return 3, f"we are waiting for {effect} to be {again}{waits_for(entry, found)}{after}"


def waits_for(entry: Found, found: Found) -> str:
    """What has to change before an entry is called; with what a person can do about it."""
    destination, until = entry["destination"], entry["waiting_until"]
    time = "" if until is None else clock(until, found)
    match entry["waiting_for"]:
        case "pause":
            waits = paused(entry["paused"], destination, found)
        case "lane":
            shown = f"`reconciler outbox show {entry['behind']}`"
            waits = f" when an earlier call of its lane is through: {shown}"
        case "breaker":
            waits = f"; {destination} is not well, and is tried again at {time}"
        case "back_off":
            waits = f" at {time}"
        case "slowed":
            waits = f"; {destination} has asked for fewer calls"
        case "rate":
            waits = f" as the rate of {destination} allows"
        case _:
            waits = "; it is due"
    return waits


def paused(pause: Found, destination: str, found: Found) -> str:
    effect = pause["effect"]
    what, option = (destination, "destination") if effect is None else (effect, "effect")
    why = f" ({short(pause['reason'])})" if pause["reason"] else ""
    since = f"since {clock(pause['paused_at'], found)}, by {pause['actor']}{why}"
    return f"; {what} is paused {since}: `reconciler outbox resume --{option} {what}`"


def attempt(number: int) -> str:
    """
    Say which attempt it was.

    >>> attempt(1), attempt(2), attempt(12)
    (' at the first attempt', ' at the second attempt', ' at attempt 12')
    """
    if 1 <= number <= len(ORDINALS):
        return f" at the {ORDINALS[number - 1]} attempt"
    return f" at attempt {number}"


def waits(found: Found) -> Iterator[str]:
    if found["drifts_since"] is not None:
        since = clock(found["drifts_since"], found)
        yield f"the listing has differed since {since}, and we are waiting for its webhook first"
    read = found["pending_read"]
    if read is not None:
        due = (
            "due now" if read["due_at"] <= found["at"] else f"due at {clock(read['due_at'], found)}"
        )
        error = f", last error: {read['last_error']}" if read["last_error"] else ""
        yield f"we are waiting for a read of it ({read['reason']}), {due}{error}"
    for copy in found["quarantined"][:NAMED]:
        name = copy["event_id"] or "a delivery without an id"
        about = "" if copy["certain"] else " (which may be about it)"
        how = copy["event_id"] or f"--copy {copy['id']}"
        replay = f"`reconciler events replay {found['sender']} {how}`"
        yield f"{name}{about} is in quarantine: {short(copy['fault'])}; {replay} applies it again"


def short(text: str) -> str:
    return text if len(text) <= LONG else text[: LONG - 3] + "..."


def next_look(found: Found) -> str:
    """When the sender's listing is looked at next."""
    if not found["listed"]:
        return "Its kind has no listing, so no scan will tell."
    dues = [due for due in found["next_scans"].values() if due is not None]
    baseline = found["baseline"]
    begun = baseline is not None and baseline["completed_at"] is not None
    still = "" if begun else "Its kind is still in its baseline. "
    if not dues:
        return f"{still}No scan has been planned yet: `reconciler serve` plans them."
    due = min(dues)
    when = "is due now" if due <= found["at"] else f"comes at {clock(due, found)}"
    return f"{still}The next scan {when}."


def clock(moment: datetime, found: Found) -> str:
    """A time as a person reads it: without the day where that is today."""
    moment, today = moment.astimezone(UTC), found["at"].astimezone(UTC)
    day = "" if moment.date() == today.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M:%S} UTC"

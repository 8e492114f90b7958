"""What happened to one resource, moment by moment, in words. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler import exact_json

COUNTED = frozenset({"event", "correction", "effect"})  #: kinds of moments of which all are counted
SHOWN = 60  #: characters of a value

Moment = dict[str, Any]
Found = Mapping[str, Any]

OUTCOMES = {
    "applied": "applied",
    "stale": "stale: not newer than what was held, so it changed nothing",
    "tied": "tied: the version that was held, with other content; a read settles it",
    "late": "late: a correction had been made in its place",
    "deferred": "deferred: a read has to say how things are",
    "ignored": "ignored: no rule names its type",
}
ACTS = {
    "events.replay": "replayed",
    "events.discard": "discarded",
    "outbox.redrive": "redrove",
    "outbox.repeat": "repeated",
    "outbox.resolve": "resolved",
    "outbox.discard": "discarded",
    "reapply": "re-applied",
}
RESULTS = {
    "quarantined": ", and it still failed",
    "unrendered": ", and it could not be rendered still",
    "superseded": ", which had been claimed meanwhile",
    "gone": ", whose bytes were not kept any more",
}


def moments(found: Found) -> list[Moment]:
    """All moments, the oldest first."""
    every = [
        *_events(found),
        *_corrections(found),
        *_copies(found),
        *_effects(found),
        *_attempts(found),
        *_acts(found),
        *_requests(found),
    ]
    return sorted(every, key=lambda one: one["at"])  # stable: an event before what it asks for


def _events(found: Found) -> Iterator[Moment]:
    corrected = {one["event_id"] for one in found["corrections"]}
    for claim in found["claims"]:
        if claim["event_id"] in corrected:
            continue
        version = None if claim["version"] is None else str(claim["version"])
        at_version = "" if version is None else f" at version {version}"
        yield {
            "at": claim["processed_at"],
            "what": "event",
            "text": f"{claim['event_type']} {claim['event_id']}{at_version}: "
            f"{OUTCOMES.get(claim['outcome'], claim['outcome'])}",
            "event_id": claim["event_id"],
            "type": claim["event_type"],
            "version": version,
            "outcome": claim["outcome"],
        }


def _corrections(found: Found) -> Iterator[Moment]:
    for one in found["corrections"]:
        by = "a read" if str(one["event_id"]).startswith("read:") else "the listing"
        old, new = (None if one[name] is None else str(one[name]) for name in VERSIONS)
        changed = f"version {old} -> {new}" if old else f"version {new}"
        yield {
            "at": one["found_at"],
            "what": "correction",
            "text": f"corrected by {by}: {one['drift']}, {changed}"
            + "".join(f"; {difference(each)}" for each in one["differences"])
            + ("" if one["late_event_at"] is None else " (its webhook came later)"),
            "event_id": one["event_id"],
            "drift": one["drift"],
            "old_version": old,
            "new_version": new,
            "differences": one["differences"],
            "run_id": one["run_id"],
            "late_event_at": one["late_event_at"],
        }


VERSIONS = ("old_version", "new_version")


def difference(one: Mapping[str, Any]) -> str:
    """
    One difference in a line.

    >>> difference({"path": "paid", "ours": False, "theirs": True})
    'paid false -> true'
    """
    return f"{one['path']} {brief(one['ours'])} -> {brief(one['theirs'])}"


def brief(value: Any) -> str:
    text = exact_json.dumps(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _copies(found: Found) -> Iterator[Moment]:
    for copy in found["quarantined"]:
        name = copy["event_id"] or f"a delivery without an id ({copy['id']})"
        about = "" if copy["certain"] else ", which may be about it,"
        times = "once" if copy["failures"] == 1 else f"{copy['failures']} times"
        yield {
            "at": copy["first_seen_at"],
            "what": "quarantine",
            "text": f"{name}{about} is kept in quarantine, failed {times}: {copy['fault']}",
            **copy,
        }


def _effects(found: Found) -> Iterator[Moment]:
    ended = {(one["entry_id"], one["verdict"]) for one in found["attempts"]}
    for entry in found["effects"]:
        name = f"{entry['effect']} at {entry['destination']}"
        facts = {"id": entry["id"], "effect": entry["effect"], "state": entry["state"]}
        asked = f"{name} is asked for by {entry['event_id']}"
        if entry["state"] == "skipped":
            asked = f"{name} is not called: {entry['last_error']}"
        elif entry["state"] == "pending" and entry["due_at"] is None:
            asked += f", and could not be rendered: {entry['last_error']}"
        yield {"at": entry["created_at"], "what": "effect", "text": asked, **facts}
        told = (entry["id"], entry["state"]) in ended  # by the attempt that ended it
        if entry["state"] in ENDS and entry["completed_at"] is not None and not told:
            reason = f": {entry['last_error']}" if entry["last_error"] else ""
            yield {
                "at": entry["completed_at"],
                "what": "end",
                "text": f"{name} is {entry['state']}{reason}",
                **facts,
            }


ENDS = frozenset({"delivered", "dead", "uncertain", "discarded"})


def _attempts(found: Found) -> Iterator[Moment]:
    entries = {entry["id"]: entry for entry in found["effects"]}
    for attempt in found["attempts"]:
        entry = entries[attempt["entry_id"]]
        verdict = attempt["verdict"] or "not answered"
        reason = f": {attempt['error']}" if attempt["error"] and attempt["verdict"] else ""
        if verdict == entry["state"] == "delivered" and entry["last_error"]:
            verdict = entry["last_error"]  # "delivered, and" what could not be written down of it
        yield {
            "at": attempt["started_at"],
            "what": "attempt",
            "text": f"{entry['effect']} at {entry['destination']}, attempt {attempt['attempt']}: "
            f"{verdict}{reason}",
            "id": entry["id"],
            "effect": entry["effect"],
            "attempt": attempt["attempt"],
            "finished_at": attempt["finished_at"],
            "verdict": attempt["verdict"],
            "status": attempt["status"],
            "error": attempt["error"],
        }


def _acts(found: Found) -> Iterator[Moment]:
    for act in found["acts"]:
        subject = act["subject"]
        thing = subject.get("effect") or subject.get("event_id") or subject.get("key", "it")
        result = RESULTS.get(subject.get("result"), "")
        reason = "" if act["reason"] is None else f": {act['reason']}"
        yield {
            "at": act["at"],
            "what": "act",
            "text": f"{act['actor']} {ACTS.get(act['action'], act['action'])} {thing}"
            f"{result}{reason}",
            "actor": act["actor"],
            "action": act["action"],
            "subject": subject,
            "reason": act["reason"],
        }


def _requests(found: Found) -> Iterator[Moment]:
    if found["drifts_since"] is not None:
        yield {
            "at": found["drifts_since"],
            "what": "drift",
            "text": "the listing is seen to differ, and left to the webhook for its grace",
        }
    read = found["pending_read"]
    if read is not None:
        error = "" if read["last_error"] is None else f"; last error: {read['last_error']}"
        yield {
            "at": read["requested_at"],
            "what": "request",
            "text": f"a read is asked for: {read['reason']}{error}",
            "reason": read["reason"],
            "due_at": read["due_at"],
            "last_error": read["last_error"],
        }

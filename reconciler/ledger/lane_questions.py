"""Whether each effect's lane orders anything, and whether what supersedes can ever do so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reconciler.errors import Problem
from reconciler.ledger.causes import PATH_NAMES
from reconciler.ledger.effects import Effect
from reconciler.settings.models import Settings

ONE_EVENT = frozenset({"event_id", "version"})  #: names that no two causes share
ALWAYS_THE_SAME = frozenset({"sender", "kind", "key", "effect"})  #: for one resource


def lane_questions(settings: Settings, effects: Sequence[Effect]) -> Iterator[Problem]:
    """Find lanes that order nothing, and words about order where there is none."""
    for effect in effects:
        key = f"effects.{effect.name}"
        for message in lanes_of_one(effect):
            yield Problem(key=f"{key}.lane", message=message)
        if effect.lane is None and not effect.destination.ordered:
            said = settings.effects[effect.name]
            for word in ("after_dead", "supersedes"):
                if word in said.model_fields_set and getattr(said, word):
                    message = (
                        f"its calls are in no order: say a lane, like {EXAMPLE},"
                        f" or destinations.{effect.destination.name}.ordered = true"
                    )
                    yield Problem(key=f"{key}.{word}", message=message)
        if effect.supersedes and effect.key is not None and effect.key.names <= ALWAYS_THE_SAME:
            message = (
                "the idempotency key stays the same from one call to the next, and belongs to the"
                " first: a newer one would be skipped (key used) and supersede nothing; name in it"
                " what differs, like {{ version }} or {{ event_id }}"
            )
            yield Problem(key=f"{key}.supersedes", message=message)


def lanes_of_one(effect: Effect) -> Iterator[str]:
    """Say why no two calls that should wait for each other would be in one lane."""
    if effect.lane is None:
        return
    if single := sorted(effect.lane.names & ONE_EVENT):
        yield (
            f"the lane names {' and '.join(single)}, so that each call is in a lane of its own and"
            f" waits for none; name what they share, like {EXAMPLE}"
        )
    unlike = sorted(effect.lane.names & (PATH_NAMES - ONE_EVENT))
    if effect.gate.changes and unlike:
        yield (
            f"the lane names {', '.join(unlike)}, which a webhook and a correction of the same"
            f" change do not share; name what they do share, like {EXAMPLE}"
        )


def lane_worries(effects: Iterable[Effect]) -> Iterator[Problem]:
    """Find lanes in which a newer call is allowed, and probably not meant, to discard another."""
    for effect in {each.name: each for each in effects}.values():
        wide = effect.lane is not None and "key" not in effect.lane.names
        if effect.supersedes and effect.gate.changes and wide:
            message = (
                "the lane does not name {{ key }}: a newer call about one resource discards what"
                f" waits about another; name it, like {EXAMPLE}, unless the newest call tells all"
            )
            yield Problem(key=f"effects.{effect.name}.supersedes", message=message)


EXAMPLE = '"order:{{ key }}"'

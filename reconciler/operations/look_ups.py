"""From the settings of look-ups to how destinations are asked about calls of unknown outcome."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from outbox.looking_up import LookUp
from reconciler import exact_json
from reconciler.errors import ConfigError, Problem
from reconciler.expressions import (
    ANSWER_NAMES,
    LOOK_UP_NAMES,
    ExpressionSyntaxError,
    PathTemplate,
    compile_expression,
    compile_path,
)
from reconciler.ledger.calls import check_path
from reconciler.operations.judging import Judging
from reconciler.settings import Settings
from reconciler.settings.models import HttpDestinationSettings, LookUpSettings

Compiled = TypeVar("Compiled")

LONGEST_BETWEEN_LOOKS = timedelta(hours=1)


def look_ups(name: str, settings: Settings) -> dict[str, Any]:
    """How one destination is asked what became of calls: of any effect, and of single ones."""
    given = settings.destinations[name]
    usual = given.look_up if isinstance(given, HttpDestinationSettings) else None
    by_effect = {
        effect: compile_look_up(f"effects.{effect}", said.look_up or usual)
        if (said.on_uncertain or given.on_uncertain) == "look_up"
        else None
        for effect, said in settings.effects.items()
        if said.destination == name and (said.on_uncertain or said.look_up)
    }
    looks_up = given.on_uncertain == "look_up"
    return {
        "look_up": compile_look_up(f"destinations.{name}", usual) if looks_up else None,
        "look_ups": by_effect,
    }


def compile_look_up(key: str, given: LookUpSettings | None) -> LookUp | None:
    """Raises ConfigError where an expression or the path is wrong."""
    if given is None:
        return None  # the settings have said so
    problems: list[Problem] = []

    def compiled(word: str, make: Callable[[], Compiled]) -> Compiled | None:
        try:
            return make()
        except ExpressionSyntaxError as error:
            problems.append(Problem(key=f"{key}.look_up.{word}", message=str(error)))
            return None

    text = given.request.partition(" ")[2]
    path = compiled("request", partial(compile_path, text, names=LOOK_UP_NAMES))
    found = compiled("found", partial(compile_expression, given.found, names=ANSWER_NAMES))
    not_found = None
    if given.not_found is not None:
        absent = partial(compile_expression, given.not_found, names=ANSWER_NAMES)
        not_found = compiled("not_found", absent)
    if problems or path is None or found is None:
        raise ConfigError(problems=problems)
    return LookUp(
        path=Asking(path),
        found=Judging(found),
        not_found=Judging(not_found) if not_found else None,
        lag=given.lag,
        every=given.every,
        at_most=LONGEST_BETWEEN_LOOKS,
        looks=given.looks,
    )


class Asking:
    """The path of a look-up, over an entry as it was frozen; `request` is the JSON that it sent."""

    def __init__(self, path: PathTemplate) -> None:
        self.path = path

    def __call__(self, names: Mapping[str, Any]) -> str:
        try:
            sent = exact_json.parse(names["request"])
        except exact_json.NotJsonError:
            sent = None
        return check_path(self.path.text({**names, "request": sent}))

"""The reference page of the configuration: every key, made from the models."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reconciler.settings.explain import keys_of, literals, members, spell
from reconciler.settings.models import Settings
from reconciler.settings.values import SIZES, Spelled

BEGIN = "<!-- the rest of this page is made by `python -m reconciler.settings.reference` -->"
WORDS = {str: "text", int: "number", bool: "boolean", timedelta: "duration", Path: "path"}


def with_reference(page: str) -> str:
    """Put the current reference behind what is written by hand in *page*."""
    return page.partition(BEGIN)[0] + BEGIN + "\n\n" + "\n".join(reference())


def reference() -> Iterator[str]:
    """The lines of the reference: one table for each table of the configuration."""
    for header, model in dict.fromkeys(tables(Settings, "")):  # a table may be in several kinds
        if plain := {key: field for key, field in keys_of(model).items() if not is_table(field)}:
            yield f"## {f'`{header}`' if header else 'Top level'}"
            yield ""
            yield "| key | type | default | meaning |"
            yield "|---|---|---|---|"
            for key, field in plain.items():
                told = " ".join((field.description or "").split())  # a row is one line
                cells = (f"`{key}`", type_of(field), default_of(field), told)
                yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
            yield ""


def tables(model: type[BaseModel], header: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of the configuration with its header, in the order of the models."""
    yield header, model
    for key, field in keys_of(model).items():
        inner_ones = list(inner_models(field.annotation))
        for inner, suffix in inner_ones:
            name = f"{header.partition(']')[0].strip('[')}.{key}{suffix}".lstrip(".")
            brackets = "[[{}]]" if suffix == "" and _is_list(field.annotation) else "[{}]"
            which = _kind_of(inner) if len(inner_ones) > 1 else ""
            if not _is_choice(field.annotation):
                yield from tables(inner, brackets.format(name) + which)


def _kind_of(model: type[BaseModel]) -> str:
    """How a header names one of several models that its table may be: by its `kind`."""
    kind = keys_of(model).get("kind")
    return f" with kind = {spell(literals(kind.annotation)[0])}" if kind else ""


def inner_models(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    for each in members(annotation):
        arguments = get_args(each)
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each, ""
        elif get_origin(each) is dict:
            yield from ((inner, ".NAME") for inner, _ in inner_models(arguments[1]))
        elif get_origin(each) is tuple:
            yield from inner_models(arguments[0])


def is_table(field: FieldInfo) -> bool:
    return not _is_choice(field.annotation) and any(inner_models(field.annotation))


def _is_list(annotation: Any) -> bool:
    return any(get_origin(each) is tuple for each in members(annotation))


def _is_choice(annotation: Any) -> bool:
    """Whether it may be a plain expression as well as a table."""
    kinds = list(members(annotation))
    inner = [list(members(get_args(each)[1])) for each in kinds if get_origin(each) is dict]
    return any(str in each for each in (kinds, *inner))


def type_of(field: FieldInfo) -> str:
    spelled = [each.word for each in field.metadata if isinstance(each, Spelled)]
    word = spelled[0] if spelled else word_for(field.annotation)
    return ", ".join([word, *limits_of(field)])


def limits_of(field: FieldInfo) -> list[str]:
    """The numbers between which the value must lie."""
    limits = []
    for each in field.metadata:
        match each:
            case Ge(ge=least):
                limits.append(f"at least {spell(least)}")
            case Le(le=most):
                limits.append(f"at most {spell(most)}")
            case Gt(gt=bound):
                limits.append(f"more than {spell(bound)}")
    return limits


def word_for(annotation: Any) -> str:
    """Name the type of *annotation* as the page does."""
    if get_origin(annotation) is Annotated:
        spelled = [each.word for each in get_args(annotation)[1:] if isinstance(each, Spelled)]
        return spelled[0] if spelled else word_for(get_args(annotation)[0])
    if words := literals(annotation):
        listed = ", ".join(f"`{spell(word)}`" for word in words)
        return f"list of {listed}" if _is_list(annotation) else listed
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    match get_origin(annotation):
        case origin if origin is dict:
            return f"table of {word_for(arguments[1])}"
        case origin if origin is tuple:
            return f"list of {word_for(arguments[0])}"
        case None:
            return WORDS.get(annotation, "any")
        case _:
            return " or ".join(dict.fromkeys(word_for(each) for each in arguments))


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    match field.default:
        case None:
            return ""
        case () | {}:
            return "`[]`" if field.default == () else "`{}`"
        case int() as number if type_of(field).startswith("size"):
            return f'`"{spell_size(number)}"`'
        case value:
            return f"`{spell(value)}`"


def spell_size(size: int) -> str:
    """
    Write a size in the largest unit that fits it.

    >>> spell_size(1048576)
    '1MiB'
    """
    unit = next(unit for unit in reversed(SIZES) if size % SIZES[unit] == 0)
    return f"{size // SIZES[unit]}{unit}"


def main() -> None:
    """Write the reference into the page, or with `--check` say whether it is there already."""
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    text = page.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(0 if text == with_reference(text) else "docs/configuration.md is not up to date")
    page.write_text(with_reference(text), encoding="utf-8")


if __name__ == "__main__":
    main()

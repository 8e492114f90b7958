"""Bodies as they go out: forms written out flat, and the idempotency key inside of a body."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

Lists = Literal["indexed", "brackets", "repeated"]
"""How a list goes into a form: `a[0]=x`, `a[]=x`, or `a=x` as often as there are items."""

FORM = "application/x-www-form-urlencoded"


def written_form(fields: Sequence[tuple[str, str]]) -> bytes:
    """
    A form's bytes (WHATWG URL, 5.2), in the order of *fields*.

    >>> written_form([("metadata[order]", "ord 1"), ("amount", "100")])
    b'metadata%5Border%5D=ord+1&amount=100'
    """
    return urlencode(fields).encode("ascii")


def flattened(value: Any, *, lists: Lists, name: str = "") -> Iterator[tuple[str, Any]]:
    """
    The fields of a form, what is nested in brackets as Stripe, Rails and PHP read it.

    >>> [*flattened({"a": {"b": 1}, "c": ["x", "y"]}, lists="indexed")]
    [('a[b]', 1), ('c[0]', 'x'), ('c[1]', 'y')]
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(inner, lists=lists, name=f"{name}[{key}]" if name else key)
    elif isinstance(value, (list, tuple)):
        suffixes = {"brackets": "[]", "repeated": ""}
        for number, inner in enumerate(value):
            suffix = suffixes.get(lists, f"[{number}]")
            yield from flattened(inner, lists=lists, name=f"{name}{suffix}")
    else:
        yield name, value


def with_key(body: bytes, content_type: str, *, field: str, key: str) -> bytes:
    """
    *body* with the idempotency *key* in its *field* (`idempotency_key`, `variables.key`).

    What was in that field is replaced; everything else keeps its order, and every number its
    digits. Raises ValueError where there is no object or form that could hold it.
    """
    path = field.split(".")
    if content_type.partition(";")[0].strip().lower() == FORM:
        name = path[0] + "".join(f"[{part}]" for part in path[1:])
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True)
        places = [number for number, (each, _) in enumerate(fields) if each == name]
        others = [each for each in fields if each[0] != name]
        others.insert(places[0] if places else len(others), (name, key))
        return written_form(others)
    whole = json.loads(body, parse_float=_Digits, parse_int=_Digits)
    inner = whole
    for part in path[:-1]:
        inner = inner.setdefault(part, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise ValueError(f"the key goes into {field}, and the body has no object there")  # noqa: TRY004
    inner[path[-1]] = key
    return "".join(_written(whole)).encode()


class _Digits(str):
    """A number of a JSON text, as it was written."""

    __slots__ = ()


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, _Digits):
        yield value
    elif isinstance(value, dict):
        for number, (name, inner) in enumerate(value.items()):
            yield "," if number else "{"
            yield f"{json.dumps(name, ensure_ascii=False)}:"
            yield from _written(inner)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield "," if number else "["
            yield from _written(inner)
        yield "]" if value else "[]"
    else:
        yield json.dumps(value, ensure_ascii=False)

"""What one configured value may be: durations, sizes, names, references, globs."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
DURATION_WORDS = (
    ("ms", "ms"), ("mil", "ms"), ("s", "s"), ("m", "m"), ("h", "h"), ("d", "d"), ("", "s"),
)  # fmt: skip
SIZE_WORDS = (("k", "KiB"), ("m", "MiB"), ("g", "GiB"), ("b", "B"), ("", "B"))
LONGEST = timedelta(days=36500)
LARGEST = 1024**3

DURATIONS = '"200ms", "90s", "5m", "24h" or "7d"'
REFERENCES = '"env:NAME", "file:/path" or "credential:name"'


@dataclass(frozen=True, slots=True)
class Spelled:
    """How the reference page names a type."""

    word: str


class EnvironmentText(str):
    """A text from an environment variable, where numbers and booleans have no other spelling."""

    __slots__ = ()


def parse_duration(value: object) -> object:
    """
    Read `200ms`, `90s`, `5m`, `24h` or `7d`; at most a hundred years.

    >>> parse_duration("24h")
    datetime.timedelta(days=1)
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", value)):
        duration = timedelta(**{UNITS[match[2]]: int(match[1])})
        if duration > LONGEST:
            raise ValueError('too long: at most a hundred years, "36500d"')
        return duration
    raise ValueError(
        f"not a duration: a number and a unit in quotes, like {DURATIONS}"
        + _guess(value, DURATION_WORDS)
    )


def parse_size(value: object) -> object:
    """
    Read `512B`, `64KiB`, `1MiB`; at most `1GiB`.

    >>> parse_size("1MiB")
    1048576
    """
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,9})(B|KiB|MiB|GiB)", value)):
        size = int(match[1]) * SIZES[match[2]]
        if not 1 <= size <= LARGEST:
            raise ValueError('out of range: from "1B" to "1GiB"')
        return size
    raise ValueError(
        'not a size: a number and a unit in quotes, like "512B", "64KiB" or "1MiB"'
        + _guess(value, SIZE_WORDS)
    )


def _guess(value: object, words: Sequence[tuple[str, str]]) -> str:
    """
    Suggest the spelling that was meant.

    >>> _guess("5 minuts", DURATION_WORDS)
    '; did you mean "5m"?'
    """
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*([A-Za-z]{0,8})\s*", str(value))
    word = match[2].lower() if match else ""
    for begin, unit in words:
        if match and (word.startswith(begin) if begin else not word):
            return f'; did you mean "{match[1]}{unit}"?'
    return ""


def whole_number(value: object) -> object:
    """Take an integer, or the digits of one from the environment; nothing is rounded or guessed."""
    if isinstance(value, EnvironmentText) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("not a whole number: digits without quotes, like 12")


def true_or_false(value: object) -> object:
    """Take true or false; from the environment their lower-case words."""
    if isinstance(value, EnvironmentText) and value in {"true", "false"}:
        return value == "true"
    if isinstance(value, bool):
        return value
    raise ValueError("neither true nor false, written without quotes")


def secret_reference(value: str) -> str:
    """Refuse anything that is not a reference, without repeating it: it may be the secret."""
    if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|credential:[A-Za-z0-9_][\w.@-]*", value):
        return value
    if value.startswith("file:"):
        raise ValueError('a file is named by its absolute path: "file:/path"')
    raise ValueError(
        f"not a reference to a secret: write {REFERENCES}; a secret itself does not belong here"
    )


def is_reference(value: str) -> bool:
    """
    Tell a reference from a plain text.

    >>> is_reference("env:TOKEN"), is_reference("application/json")
    (True, False)
    """
    return value.startswith(("env:", "file:", "credential:"))


def header_value(value: str) -> str:
    """Take a header's value: visible ASCII, or a reference to a secret."""
    if is_reference(value):
        return secret_reference(value)
    if not re.fullmatch(r"[!-~]([ -~\t]*[!-~])?|", value):
        raise ValueError("not a header value: visible ASCII without space at either end")
    return value


def proxy_address(value: str) -> str:
    """Take the address of a proxy, or a reference to one that holds credentials."""
    if is_reference(value):
        return secret_reference(value)
    if not re.fullmatch(r"https?://[^/@\s?#]+/?", value):
        raise ValueError(
            'not a proxy: write it like "http://proxy.example:3128"; one with credentials is a'
            f" reference, {REFERENCES}"
        )
    return value


def not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("empty: leave the key out, or say something")
    return value


def json_value(value: object) -> object:
    """Take what JSON can say: TOML's dates, `nan` and `inf` have no place there."""
    match value:
        case EnvironmentText():
            try:
                return json.loads(value, parse_float=Decimal)
            except ValueError:
                return str(value)
        case bool() | int() | str() | None:
            return value
        case Decimal() if value.is_finite():
            return value
        case list() | tuple():
            return [json_value(item) for item in value]
        case dict():
            return {key: json_value(item) for key, item in value.items()}
        case date() | time():
            raise ValueError("JSON has no dates: put the date in quotes")
        case _:
            raise ValueError("JSON cannot say this: use texts, whole or decimal numbers, booleans")


def matching(pattern: str, sentence: str) -> BeforeValidator:
    """
    Take only texts that match *pattern* as a whole; *sentence* says what would be right.

    Also of what is no text: that `rate = 20` needs quotes would be half of what is wrong with it.
    """

    def match(value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(sentence)
        return value

    return BeforeValidator(match)


NAME = r"[a-z][a-z0-9_]{0,62}"
NAME_SENTENCE = 'not a name: a small letter, then small letters, digits and "_", like "order_line"'
HEADER = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}"
HEADER_SENTENCE = 'not the name of a header: letters, digits and dashes, like "X-Signature"'
_SCHEMA = r'\s*(?:[^\s,"\0]+|"(?:[^"\0]|"")+")\s*'  # as PostgreSQL splits them
SEARCH_PATH = rf"{_SCHEMA}(?:,{_SCHEMA})*"
SEARCH_PATH_SENTENCE = 'not a search path: names of schemas with commas, like "public, audit"'

Name = Annotated[str, matching(NAME, NAME_SENTENCE), Spelled("name")]
Duration = Annotated[timedelta, BeforeValidator(parse_duration), Spelled("duration")]
Size = Annotated[int, BeforeValidator(parse_size), Spelled("size")]
Int = Annotated[int, BeforeValidator(whole_number), Spelled("number")]
Bool = Annotated[bool, BeforeValidator(true_or_false), Spelled("boolean")]
SecretRef = Annotated[str, AfterValidator(secret_reference), Spelled("secret reference")]
HeaderName = Annotated[str, matching(HEADER, HEADER_SENTENCE), Spelled("header name")]
Proxy = Annotated[str, AfterValidator(proxy_address), Spelled("URL or secret reference")]
HeaderValue = Annotated[str, AfterValidator(header_value), Spelled("text or secret reference")]
Expr = Annotated[str, AfterValidator(not_blank), Spelled("expression")]
Whole = Annotated[str, Spelled("expression")]  #: "" is all of it
Text = Annotated[str, Spelled("template")]
Filled = Annotated[str, AfterValidator(not_blank), Spelled("text")]
SearchPath = Annotated[str, matching(SEARCH_PATH, SEARCH_PATH_SENTENCE), Spelled("text")]
Globs = tuple[Annotated[str, AfterValidator(not_blank), Spelled("glob")], ...]
JsonValue = Annotated[Any, BeforeValidator(json_value), Spelled("JSON")]
Moment = Annotated[Duration, Field(gt=timedelta(0))]  #: a duration that is not zero


class Section(BaseModel):
    """A part of the settings: unknown keys are mistakes, values do not change."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=False,
        populate_by_name=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

"""Secrets: the configuration names them, here they are read, and nothing prints them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from reconciler.settings.documents import Finding, walk
from reconciler.settings.models import (
    ApiSettings,
    HttpDestinationSettings,
    Settings,
    SmtpDestinationSettings,
)
from reconciler.settings.positions import KeyPath
from reconciler.settings.values import is_reference, proxy_address

LARGEST = 64 * 1024
TOKEN_LENGTH = 32
#: stands for a secret that could not be read, so that `check` can go on; nothing is run with it
STAND_IN = "00" * TOKEN_LENGTH


def read_secrets(settings: Settings, environ: Mapping[str, str]) -> tuple["Secrets", list[Finding]]:
    """Read every secret that *settings* name, and find those that cannot be used."""
    values: dict[str, str] = {}
    findings = []
    for path, reference in references(settings):
        try:
            value = read_secret(reference, environ)
            check_use(path, value)
            values[reference] = value
        except ValueError as error:
            findings.append(Finding(path=path, message=str(error)))
            values.setdefault(reference, STAND_IN)
    return Secrets(values), findings


def references(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Every reference in *settings*, with the key that makes it."""
    if settings.database.password:
        yield ("database", "password"), settings.database.password
    if settings.server.admin_token:
        yield ("server", "admin_token"), settings.server.admin_token
    for name, sender in settings.senders.items():
        for number, reference in enumerate(sender.secrets):
            yield ("senders", name, "secrets", number), reference
    callers = [
        *((("senders", name, "api"), each.api) for name, each in settings.senders.items()),
        *((("destinations", name), each) for name, each in settings.destinations.items()),
    ]
    for path, caller in callers:
        if isinstance(caller, SmtpDestinationSettings):
            if caller.password:
                yield (*path, "password"), caller.password
        elif caller:
            yield from (((*path, *key), value) for key, value in _of_a_client(caller))


def _of_a_client(caller: ApiSettings | HttpDestinationSettings) -> Iterator[tuple[KeyPath, str]]:
    said: list[tuple[KeyPath, str | None]] = [
        (("bearer",), caller.bearer),
        (("proxy",), caller.proxy),
        *((("headers", header), value) for header, value in caller.headers.items()),
    ]
    if isinstance(caller, HttpDestinationSettings):
        said += [(("query", name), value) for name, value in caller.query.items()]
        said += [(("basic", key), value) for key, value in caller.basic or ()]
    yield from ((key, value) for key, value in said if value and is_reference(value))


def named_variables(tree: object) -> frozenset[str]:
    """The environment variables that a configuration refers to, before it has been checked."""
    return frozenset(
        value.removeprefix("env:")
        for _, value in walk(tree)
        if isinstance(value, str) and value.startswith("env:")
    )


def read_secret(reference: str, environ: Mapping[str, str]) -> str:
    r"""
    Read what *reference* names, without the line endings at its end.

    An editor ends a file with a line ending, which is no part of the secret; spaces may be.
    Raises ValueError, which names the place and never the content.
    """
    kind, _, name = reference.partition(":")
    match kind:
        case "env":
            if name not in environ:
                # what is not written like a variable may be the secret itself
                called = name if re.fullmatch(r"[A-Z0-9_]+", name) else "named here"
                raise ValueError(f"the environment variable {called} is not set")
            value, where = environ[name], f"the environment variable {name}"
        case "file":
            value, where = _read(Path(name)), f"the file {name}"
        case "credential":
            directory = environ.get("CREDENTIALS_DIRECTORY")
            if not directory:
                raise ValueError(
                    "there is no credential directory: systemd sets CREDENTIALS_DIRECTORY"
                    f" with LoadCredential={name}:/path"
                )
            value, where = _read(Path(directory, name)), f"the credential {name}"
        case _:
            raise ValueError("not a reference to a secret")
    value = re.sub(r"(\r?\n)+\Z", "", value)
    if re.search("[\ud800-\udfff]", value):  # bytes of the environment that are no text
        raise ValueError(f"{where} is not UTF-8: write binary keys as hex or base64")
    if is_blank(value):
        raise ValueError(f"{where} is blank: a blank secret authenticates everybody")
    return value


def is_blank(value: str) -> bool:
    r"""
    Whether nothing in *value* can be seen: spaces of any kind, controls, a byte order mark.

    >>> is_blank(" \t\ufeff\u200b"), is_blank("a b")
    (True, False)
    """
    return not any(each.isprintable() and not each.isspace() for each in value)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read: {error.strerror}") from None
    if len(content) > LARGEST:
        raise ValueError(f"the file {path} is larger than 64 KiB, too large for a secret")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"the file {path} is not UTF-8: write binary keys as hex or base64"
        ) from None


def check_use(path: KeyPath, value: str) -> None:
    """Raise ValueError when the secret at *path* cannot do what it is for."""
    match path:
        case ("senders", str(), "secrets", int()):
            pass  # how it becomes a key is the signature's business
        case ("server", "admin_token"):
            if len(value) < TOKEN_LENGTH:
                raise ValueError(f"too short: an admin token has {TOKEN_LENGTH} characters or more")
            _check_header(value)
        case (*_, "proxy"):
            proxy_address(f"http://{value.rpartition('@')[2]}" if "@" in value else value)
        case (*_, "query", _) | (*_, "basic", _):
            if re.search(r"[\x00-\x1f\x7f]", value):
                raise ValueError("holds a control character, which cannot be sent")
        case ("database", "password"):
            if "\0" in value:
                raise ValueError("a password cannot contain NUL")
        case _:
            _check_header(value)


def _check_header(value: str) -> None:
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value):
        raise ValueError(
            "cannot be sent in a header: only visible ASCII, without space at either end"
        )


class Secrets:
    """What the references of one configuration stand for. Its repr says nothing."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def resolve(self, reference: str) -> str:
        """The secret behind `env:NAME`, `file:/path` or `credential:name`; KeyError if unread."""
        return self._values[reference]

    def header(self, value: str) -> str:
        """A header's configured value: what it refers to, or itself."""
        return self._values[value] if is_reference(value) else value

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} read)"

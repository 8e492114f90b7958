"""Whether a delivery is authentic: pure, over the bytes as they were received."""

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reconciler.errors import ConfigError, Problem
from reconciler.settings.models import SignatureSettings

Headers = Sequence[tuple[bytes, bytes]]  #: lines as received: name in any case, value

CANDIDATES_MAX = 32  #: signatures that one delivery may offer; no sender lists more than a few

_SIGNABLE = frozenset({"body", "timestamp", "id", "url", "method"})
_NAME = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_SECONDS = re.compile(rb"[0-9]{1,20}")
_BLANK = b" \t\r\n\v\f\0"  # HMAC pads keys with zeros: one of zeros is the empty one
_ALGORITHMS = {"hmac-sha1": "sha1", "hmac-sha256": "sha256", "hmac-sha512": "sha512"}


class Verdict(StrEnum):
    """What checking a signature came to; all but the first get one and the same answer."""

    ACCEPTED = "accepted"
    MISSING = "missing"  #: no signature, or a part that is signed with it is not there
    MALFORMED = "malformed"  #: not written as declared, contradictory, or far too much of it
    WRONG = "wrong"  #: made with none of our secrets, or over other bytes
    TOO_OLD = "too_old"  #: right, but signed too long ago: a replay, or our clock is fast
    TOO_NEW = "too_new"  #: right, but signed in the future: our clock is slow


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureContract:
    """How one sender signs, ready to check: keys decoded, names in lower case."""

    algorithm: str
    keys: tuple[bytes, ...]
    pieces: tuple[bytes | str, ...]  #: what is signed: bytes as they are, str a name
    url: bytes
    tolerance: int  #: seconds, to both sides, inclusive
    encoding: str
    header: bytes
    prefix: bytes
    item_separator: bytes | None
    value_separator: bytes | None
    signature_field: bytes | None
    timestamp_field: bytes | None
    timestamp_header: bytes | None
    id_header: bytes | None

    @property
    def timed(self) -> bool:
        """Whether the time of signing is signed; one that is not proves nothing."""
        return "timestamp" in self.pieces


def verify(
    contract: SignatureContract, *, headers: Headers, body: bytes, now: int, method: str = "POST"
) -> Verdict:
    """
    Check *body* against the signatures in *headers*: any of our secrets, any listed signature.

    *body* is what came over the wire, *now* unix seconds. What is outside the tolerance is
    told from what is wrong only for a right signature: then it is usually our clock.
    """
    try:
        candidates, stamps = _read(contract, headers)
        values: dict[str, bytes] = {"body": body, "url": contract.url, "method": method.encode()}
        if contract.timed:
            values["timestamp"] = _timestamp(stamps)
        if contract.id_header is not None and "id" in contract.pieces:
            values["id"] = _only(_lines(headers, contract.id_header))
            _refuse_ambiguous(contract, values["id"])
    except _RefusedError as refused:
        return refused.verdict
    if not _matches(contract, candidates, b"".join(_signed(contract, values))):
        return Verdict.WRONG
    if not contract.timed:
        return Verdict.ACCEPTED
    age = now - int(values["timestamp"])
    if age > contract.tolerance:
        return Verdict.TOO_OLD
    return Verdict.TOO_NEW if age < -contract.tolerance else Verdict.ACCEPTED


def compile_signature(
    settings: SignatureSettings, *, secrets: Sequence[str], public_url: str | None, key: str
) -> SignatureContract:
    """
    Prepare what *settings* declare; *key* is the dotted path that problems are reported under.

    Raises ConfigError with every problem found.
    """
    problems: list[Problem] = []
    pieces = _pieces(settings, public_url=public_url, key=key, problems=problems)
    keys = []
    for position, secret in enumerate(secrets):
        try:
            keys.append(_key(settings, secret))
        except ValueError as error:
            problems.append(Problem(key=f"{key}.secrets[{position}]", message=str(error)))
    if settings.value_separator is not None and settings.signature_field is None:
        problems.append(
            Problem(
                key=f"{key}.signature.signature_field",
                message="must be said where `value_separator` is: which items are signatures",
            )
        )
    if problems:
        raise ConfigError(problems=problems)
    return SignatureContract(
        algorithm=_ALGORITHMS[settings.scheme],
        keys=tuple(keys),
        pieces=pieces,
        url=(public_url or "").encode(),
        tolerance=int(settings.tolerance.total_seconds()),
        encoding=settings.encoding,
        header=settings.header.lower().encode("latin-1"),
        prefix=settings.prefix.encode(),
        item_separator=_bytes(settings.item_separator),
        value_separator=_bytes(settings.value_separator),
        signature_field=_bytes(settings.signature_field),
        timestamp_field=_bytes(settings.timestamp_field),
        timestamp_header=_bytes(settings.timestamp_header, lower=True),
        id_header=_bytes(settings.id_header, lower=True),
    )


def _read(contract: SignatureContract, headers: Headers) -> tuple[list[bytes], list[bytes]]:
    """Return the decoded candidates and the times of signing that *headers* offer."""
    lines = [line for line in _lines(headers, contract.header) if line]
    if not lines:
        raise _RefusedError(Verdict.MISSING)
    stamps = [] if contract.timestamp_header is None else _lines(headers, contract.timestamp_header)
    written: list[bytes] = []
    for name, value in _items(contract, lines):
        if name is not None and name == contract.timestamp_field:
            stamps.append(value)
        if name == contract.signature_field and value.startswith(contract.prefix):
            written.append(value[len(contract.prefix) :])
    if len(written) > CANDIDATES_MAX:
        raise _RefusedError(Verdict.MALFORMED)
    decoded = [_decoded(contract.encoding, text) for text in written]
    candidates = [candidate for candidate in decoded if candidate is not None]
    if not candidates:
        raise _RefusedError(Verdict.MALFORMED)
    return candidates, stamps


def _items(
    contract: SignatureContract, lines: Iterable[bytes]
) -> Iterable[tuple[bytes | None, bytes]]:
    for line in lines:
        items = [line] if contract.item_separator is None else line.split(contract.item_separator)
        for item in items:
            text = item.strip(b" \t")
            if contract.value_separator is None:
                if text:
                    yield None, text
                continue
            name, found, value = text.partition(contract.value_separator)
            if found:
                yield name, value


def _decoded(encoding: str, text: bytes) -> bytes | None:
    """Return the signature's bytes; None for what is not written strictly in *encoding*."""
    try:
        if encoding == "hex":
            return binascii.unhexlify(text)  # both cases, no spaces
        decoded = base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one
        return None
    return decoded if base64.b64encode(decoded) == text else None


def _matches(contract: SignatureContract, candidates: Sequence[bytes], signed: bytes) -> bool:
    matched = False
    for key in contract.keys:
        digest = hmac.digest(key, signed, contract.algorithm)
        for candidate in candidates:
            matched |= hmac.compare_digest(digest, candidate)
    return matched


def _signed(contract: SignatureContract, values: dict[str, bytes]) -> Iterable[bytes]:
    return (values[piece] if isinstance(piece, str) else piece for piece in contract.pieces)


def _timestamp(stamps: Sequence[bytes]) -> bytes:
    stamp = _only(stamps)
    if not _SECONDS.fullmatch(stamp):  # ASCII digits: int() also takes "+5", "1_0" and Arabic ones
        raise _RefusedError(Verdict.MALFORMED)
    return stamp


def _only(values: Sequence[bytes]) -> bytes:
    match set(values):
        case found if not found or found == {b""}:
            raise _RefusedError(Verdict.MISSING)
        case found if len(found) > 1:  # which of them was signed is not ours to guess
            raise _RefusedError(Verdict.MALFORMED)
    return values[0]


def _refuse_ambiguous(contract: SignatureContract, value: bytes) -> None:
    """
    Refuse an id that holds the text that is joined after it.

    `a.1` and `2` would be signed like `a` and `1.2`: one signature for two deliveries.
    Standard Webhooks forbids the full stop in ids for that reason.
    """
    following = contract.pieces[contract.pieces.index("id") + 1 :][:1]
    if following and isinstance(following[0], bytes) and following[0] in value:
        raise _RefusedError(Verdict.MALFORMED)


def _lines(headers: Headers, name: bytes) -> list[bytes]:
    return [value for found, value in headers if found.lower() == name]


def _pieces(
    settings: SignatureSettings, *, public_url: str | None, key: str, problems: list[Problem]
) -> tuple[bytes | str, ...]:
    where = f"{key}.signature.signed"
    parts = _NAME.split(settings.signed)
    literals, names = parts[0::2], parts[1::2]
    sources = {
        "timestamp": settings.timestamp_header or settings.timestamp_field,
        "id": settings.id_header,
        "url": public_url,
    }
    needed = {
        "timestamp": "`timestamp_header` or `timestamp_field`",
        "id": "`id_header`",
        "url": "the sender's `public_url`",
    }
    if any(mark in literal for literal in literals for mark in ("{{", "}}", "{%")):
        problems.append(
            Problem(key=where, message="only names may be in it, like {{ timestamp }}.{{ body }}")
        )
    problems += [
        Problem(key=where, message=f"there is no `{name}`, only {', '.join(sorted(_SIGNABLE))}")
        for name in names
        if name not in _SIGNABLE
    ]
    problems += [
        Problem(key=where, message=f"`{name}` is signed, so {needed[name]} must say where it is")
        for name in names
        if name in needed and not sources[name]
    ]
    if "body" not in names:
        problems.append(Problem(key=where, message="`body` must be in it, or it proves nothing"))
    mixed = [part if place % 2 else part.encode() for place, part in enumerate(parts)]
    return tuple(piece for piece in mixed if piece)


def _key(settings: SignatureSettings, secret: str) -> bytes:
    raw = secret.removeprefix(settings.key_prefix).encode()
    try:
        match settings.key:
            case "utf8":
                decoded = raw
            case "hex":
                decoded = binascii.unhexlify(raw)
            case "base64":  # the padding may be missing (Standard Webhooks)
                decoded = base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True)
    except ValueError:
        raise ValueError(f"the secret is not {settings.key}") from None
    if not decoded.strip(_BLANK):
        raise ValueError("the secret is blank: anybody could sign with it")
    return decoded


def _bytes(text: str | None, *, lower: bool = False) -> bytes | None:
    if text is None:
        return None
    return text.lower().encode() if lower else text.encode()


class _RefusedError(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

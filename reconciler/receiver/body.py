"""Bodies, bounded: how long one may take, how large it may be, and what gzip makes of it."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

MEMBERS_MAX = 16  #: gzip members of one body; senders write one

_GZIP = 31  #: zlib's name for "expect a gzip header and trailer"


async def read_body(
    receive: Receive, *, limit: int, within: timedelta, share: "Allowance.Share"
) -> bytes:
    """
    Return the whole body, as it came over the wire.

    Raises TooLargeError beyond *limit* bytes, TooSlowError when it has not all arrived
    *within* that time (however much trickles), GoneError when the client leaves in the middle,
    and AllowanceError when all bodies together would take too much memory.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within.total_seconds()):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > limit:
                    raise TooLargeError
                share.take(len(chunk))
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError:
        raise TooSlowError from None


def inflate(data: bytes, *, limit: int) -> bytes:
    """
    Return what *data*, one or more gzip members (RFC 1952), holds.

    Never makes more than *limit* bytes: raises TooLargeError. Raises NotGzipError for what is
    broken, cut off, or followed by something else.
    """
    pieces: list[bytes] = []
    room = limit
    rest = data
    for _ in range(MEMBERS_MAX):  # each one copies what follows it
        member = zlib.decompressobj(wbits=_GZIP)
        try:
            piece = member.decompress(rest, room + 1)
        except zlib.error:
            raise NotGzipError from None
        if len(piece) > room:
            raise TooLargeError
        if not member.eof:
            raise NotGzipError
        pieces.append(piece)
        room -= len(piece)
        rest = member.unused_data
        if not rest:
            return b"".join(pieces)
    raise NotGzipError


@dataclass(slots=True, kw_only=True)
class Allowance:
    """How many bytes of bodies may be held at once, over all deliveries."""

    limit: int
    taken: int = 0

    def share(self) -> "Allowance.Share":
        return Allowance.Share(whole=self)

    @dataclass(slots=True, kw_only=True)
    class Share:
        """What one delivery holds; given back when it has been answered."""

        whole: "Allowance"
        taken: int = 0

        def take(self, size: int) -> None:
            if self.whole.taken + size > self.whole.limit:
                raise AllowanceError
            self.whole.taken += size
            self.taken += size

        def give_back(self) -> None:
            self.whole.taken -= self.taken
            self.taken = 0


class TooLargeError(Exception):
    """The body is larger than the sender's `max_body`, on the wire or inflated."""


class TooSlowError(Exception):
    """The body did not arrive in time."""


class GoneError(Exception):
    """The client left before its body was complete."""


class NotGzipError(Exception):
    """The body says that it is gzip, and is not."""


class AllowanceError(Exception):
    """All bodies together would take more memory than we give them."""

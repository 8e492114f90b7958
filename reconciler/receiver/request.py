"""One HTTP request as the receiver sees it: what is known at once, and what has been read."""

import asyncio
from collections.abc import Mapping
from typing import TypedDict

from reconciler.http_server import Receive, Scope
from reconciler.receiver.body import Allowance, TooLargeError, inflate, read_body
from reconciler.receiver.contract import SenderContract
from reconciler.receiver.headers import joined, masked
from reconciler.receiver.signature import Headers
from reconciler.settings.models import ReceiverSettings


class Greeted(TypedDict):
    """What handshakes are asked over."""

    body: bytes
    headers: Mapping[str, str]
    query: bytes
    method: str


class Request:
    """A request that is being answered; its body is read at most once, and bounded."""

    def __init__(self, scope: Scope, receive: Receive, allowance: Allowance) -> None:
        self.scope = scope
        self.receive = receive
        self.share = allowance.share()
        self.begun = asyncio.get_running_loop().time()
        self.method: str = scope["method"]
        self.headers: Headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        self.values = joined(self.headers)
        self.encodings = encodings_of(self.values)
        self.body = b""
        self.whole = not has_body(self.values)

    async def read(self, contract: SenderContract, settings: ReceiverSettings) -> None:
        """Read the body; raises what `read_body` raises, before reading where that is clear."""
        declared = self.values.get("content-length", "")
        if declared.isdecimal() and int(declared) > contract.max_body:
            raise TooLargeError
        self.body = await read_body(
            self.receive,
            limit=contract.max_body,
            within=settings.body_timeout,
            share=self.share,
        )
        self.whole = True

    def inflate(self, contract: SenderContract) -> None:
        """Put what the body holds in its place; the signature was over what it was."""
        self.body = inflate(self.body, limit=contract.max_body)
        self.share.take(len(self.body))
        self.encodings = frozenset()
        del self.values["content-encoding"]

    def kept(self, contract: SenderContract) -> dict[str, str]:
        """Return the headers as they may be stored."""
        return masked(
            self.values,
            always=contract.masked_headers,
            never=contract.read_headers,
            secrets=contract.masked_secrets,
        )

    @property
    def greeted(self) -> Greeted:
        return Greeted(
            body=self.body,
            headers=self.values,
            query=self.scope["query_string"],
            method=self.method,
        )


def encodings_of(values: Mapping[str, str]) -> frozenset[str]:
    """
    Return the content encodings, without `identity`, which is none.

    Several, one over the other, are an encoding of their own: nobody accepts it.
    """
    named = values.get("content-encoding", "").lower().split(",")
    found = [each.strip() for each in named if each.strip() not in {"", "identity"}]
    return frozenset([" over ".join(found).replace("x-gzip", "gzip")] if found else [])


def has_body(values: Mapping[str, str]) -> bool:
    return "transfer-encoding" in values or values.get("content-length", "0") != "0"

"""The webhook route: from a request to an answer that leaves only after the commit."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from reconciler.errors import DatabaseAwayError
from reconciler.faults import point
from reconciler.http_server import Receive, Scope, Send, framing_fault
from reconciler.ledger.batch import Result
from reconciler.ledger.event import Event, Outcome
from reconciler.receiver import answers, envelope
from reconciler.receiver.answers import Answer, Told
from reconciler.receiver.body import (
    Allowance,
    AllowanceError,
    GoneError,
    NotGzipError,
    TooLargeError,
    TooSlowError,
)
from reconciler.receiver.contract import SenderContract
from reconciler.receiver.envelope import Delivery, Malformed
from reconciler.receiver.group_commit import GroupCommit, OverloadError
from reconciler.receiver.handshake import greet
from reconciler.receiver.keeping import Keep
from reconciler.receiver.request import Request
from reconciler.receiver.respond import respond
from reconciler.receiver.signature import Verdict, verify
from reconciler.settings.models import ReceiverSettings

log = structlog.get_logger()

BODIES_MAX = 256 * 1024**2  #: bytes of all bodies that are held at once

_GREETED = ("GET", "HEAD", "OPTIONS")  #: methods, beside POST, that a handshake may use


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What the metrics are told of each answer; *sender* is empty for one that is unknown."""

    sender: str
    status: int
    outcome: str
    reason: str | None
    outcomes: tuple[str, ...]  #: of each event
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookApp:
    """
    An ASGI application that takes deliveries of the configured senders.

    *keep* puts what is beyond use into quarantine; *clock* gives unix seconds and is asked for
    nothing but signatures; *metrics* is told of every answer.
    """

    contracts: Mapping[str, SenderContract]
    committer: GroupCommit[Result]
    keep: Keep
    settings: ReceiverSettings
    clock: Callable[[], float] = time.time
    metrics: Callable[[Answered], None] = lambda _: None
    allowance: Allowance = field(default_factory=lambda: Allowance(limit=BODIES_MAX))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.monotonic()
        contract = self.contract_for(scope["path"])
        request = Request(scope, receive, self.allowance)
        try:
            answer = await self.answer(contract, request)
        except GoneError:
            log.info("receiver.abandoned", sender=contract.name if contract else None)
            return
        except asyncio.CancelledError:  # the drain's time is up
            await respond(send, answers.busy("stopped"))
            raise
        finally:
            request.share.give_back()
        self.tell(contract, answer, time.monotonic() - begun)
        await respond(send, answer, unread=None if request.whole else receive)

    def contract_for(self, path: str) -> SenderContract | None:
        """Find the sender that a path names; `/webhooks` is enough where there is one."""
        if path == "/webhooks" and len(self.contracts) == 1:
            return next(iter(self.contracts.values()))
        return self.contracts.get(path.removeprefix("/webhooks/"))

    async def answer(self, contract: SenderContract | None, request: Request) -> Answer:
        """Make the checks in an order in which what costs least, and tells least, is first."""
        if contract is None:
            return answers.refused(404, "unknown sender")
        if answer := self.answer_at_sight(contract, request):
            return answer
        try:
            await request.read(contract, self.settings)
            return await self.answer_delivery(contract, request)
        except TooLargeError:
            return answers.refused(413, f"larger than {contract.max_body} bytes")
        except TooSlowError:
            return answers.refused(408, "the body did not arrive in time")
        except AllowanceError:
            return answers.busy("too many bodies at once")

    def answer_at_sight(self, contract: SenderContract, request: Request) -> Answer | None:
        """Answer what needs no look at the body."""
        if fault := framing_fault(request.scope):
            return answers.refused(400, fault)
        if request.method != "POST":
            return self.answer_other_method(contract, request)
        if not request.encodings <= contract.encodings:
            return answers.refused(415, "content encoding not accepted")
        return None

    def answer_other_method(self, contract: SenderContract, request: Request) -> Answer:
        """Answer GET and the like only where a handshake asks for a method."""
        asking = [each for each in contract.handshakes if each.asks_method]
        if not asking or request.method not in _GREETED:
            return answers.wrong_method([*_GREETED, "POST"] if asking else ["POST"])
        verdict = self.verdict(contract, request)
        accepted = [each for each in asking if verdict is Verdict.ACCEPTED or not each.signed]
        if greeting := greet(accepted, **request.greeted):
            return answers.for_handshake(greeting)
        if len(accepted) < len(asking):
            return answers.refused(contract.refused_status, "signature", reason=verdict)
        return answers.wrong_method([*_GREETED, "POST"])

    async def answer_delivery(self, contract: SenderContract, request: Request) -> Answer:
        unsigned = [each for each in contract.handshakes if not each.signed]
        if greeting := greet(unsigned, **request.greeted):
            return answers.for_handshake(greeting)
        verdict = self.verdict(contract, request)
        if verdict is not Verdict.ACCEPTED:
            return answers.refused(contract.refused_status, "signature", reason=verdict)
        point("after-verify")
        if request.encodings:
            try:
                request.inflate(contract)
            except NotGzipError:
                delivery = _unusable(contract, request, "not gzip, as its header says")
                return await self.settle(contract, request, delivery)
        signed = [each for each in contract.handshakes if each.signed]
        if greeting := greet(signed, **request.greeted):
            return answers.for_handshake(greeting)
        return await self.settle(contract, request, read_delivery(contract, request))

    async def settle(
        self, contract: SenderContract, request: Request, delivery: Delivery
    ) -> Answer:
        """Store what the delivery carries, within the time that the sender waits."""
        events = [each for each in delivery.events if isinstance(each, Event)]
        malformed = [each for each in delivery.events if isinstance(each, Malformed)]
        try:
            async with asyncio.timeout_at(request.begun + contract.answer_within.total_seconds()):
                if malformed and not contract.refuses_malformed:
                    await self.keep(malformed)
                results = list(await self.committer.submit(events)) if events else []
        except TimeoutError:
            return answers.busy("not committed within answer_within")
        except OverloadError as error:
            return answers.busy(str(error))
        except DatabaseAwayError:
            return answers.busy("database away")
        except Exception:  # whatever broke, no sender is told that it was its content
            log.exception("receiver.failed", sender=contract.name)
            return answers.busy("failed")
        point("after-commit-before-ack")
        told = [
            _told_malformed(contract, each)
            if isinstance(each, Malformed)
            else _told(results.pop(0))
            for each in delivery.events
        ]
        return answers.for_events(told, batch=delivery.batch)

    def verdict(self, contract: SenderContract, request: Request) -> Verdict:
        return verify(
            contract.signature,
            headers=request.headers,
            body=request.body,
            now=int(self.clock()),
            method=request.method,
        )

    def tell(self, contract: SenderContract | None, answer: Answer, seconds: float) -> None:
        sender = contract.name if contract else ""
        facts: dict[str, object] = {
            "sender": sender,
            "event_id": answer.event_id,
            "outcome": answer.outcome,
            "status": answer.status,
            "ms": round(seconds * 1000, 1),
        }
        if answer.reason:
            facts["reason"] = answer.reason
        if answer.outcome == "batch":
            facts["outcomes"] = answers.counted(answer.outcomes)
        (log.info if answer.status < 400 else log.warning)("receiver.answered", **facts)
        self.metrics(
            Answered(
                sender=sender,
                status=answer.status,
                outcome=answer.outcome,
                reason=answer.reason,
                outcomes=answer.outcomes,
                seconds=seconds,
            )
        )


def read_delivery(contract: SenderContract, request: Request) -> Delivery:
    """Read the events; a bug of ours over strange content is quarantine too, never a 5xx (P17)."""
    headers = request.kept(contract)
    try:
        return envelope.read_delivery(contract, request.body, headers)
    except Exception as error:
        log.exception("receiver.read_failed", sender=contract.name)
        return _unusable(contract, request, f"could not be read ({type(error).__name__})")


def _unusable(contract: SenderContract, request: Request, fault: str) -> Delivery:
    whole = Malformed(
        sender=contract.name, raw=request.body, headers=request.kept(contract), fault=fault
    )
    return Delivery(events=(whole,), batch=False)


def _told_malformed(contract: SenderContract, malformed: Malformed) -> Told:
    if contract.refuses_malformed:
        return Told(status=422, outcome="refused", event_id=malformed.event_id)
    return Told(status=200, outcome=Outcome.QUARANTINED, event_id=malformed.event_id)


def _told(result: Result) -> Told:
    event_id = result.event.event_id
    if result.busy:  # held by another transaction for too long: nothing of it is stored
        return Told(status=503, outcome="busy", event_id=event_id)
    return Told(status=500 if result.retryable else 200, outcome=result.outcome, event_id=event_id)

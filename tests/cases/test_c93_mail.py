"""C93: a mail whose answer was lost is not sent again, from the webhook to the inbox."""

from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.rendering import render_again
from tests.cases.house import a_house
from tests.outbox.pretend_mail import DROP, MailServer

pytestmark = pytest.mark.anyio

MAIL = """
[destinations.mail]
kind = "smtp"
host = "127.0.0.1"
port = {port}
allow_private = ["127.0.0.0/8"]

[effects.told]
on = ["shop:refund.succeeded"]
max_age = "48h"
destination = "mail"
to = "{{{{ body.data.email }}}}"
bcc = ["audit@shop.example"]
subject = "Your refund for {{{{ body.data.order_id }}}}"
text = "We sent you {{{{ body.data.amount }}}}."
html = "<p>We sent you {{{{ body.data.amount }}}}.</p>"
"""


def refund(event_id: str, **data: str) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    data = {"order_id": "ord_42", "amount": "42", **data}
    return {"id": event_id, "type": "refund.succeeded", "created_at": now, "data": data}


ENTRIES = (
    "select state, part, method, path, idempotency_key, coalesce(last_error, '')"
    " from outbox where effect = 'told' order by part"
)


async def test_one_event_is_one_mail_whatever_becomes_of_the_answer(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    The server takes the mail and its answer is lost; the sender delivers the event again and
    again, and days go by. The customer has one mail; that it may not have arrived is told.
    """
    async with (
        MailServer(says={"end": [DROP]}) as server,
        a_house(engine, tmp_path, more=MAIL.format(port=server.port)) as house,
    ):
        event = refund("evt_1", email="jo@customer.example")
        assert "applied" == await house.outcome(event)
        await house.call()
        assert "duplicate" == await house.outcome(event)
        assert 0 == await house.call()

        lost = "after the end of the data: SMTPServerDisconnected"
        assert [
            ("uncertain", "0", "MAIL", "jo@customer.example", "evt_1", lost),
            ("uncertain", "1", "MAIL", "audit@shop.example", "evt_1:p1", lost),
        ] == await house.rows(ENTRIES)
    assert [["audit@shop.example"], ["jo@customer.example"]] == sorted(
        mail.recipients for mail in server.taken
    )
    assert {"reconciler@[127.0.0.1]"} == {mail.sender for mail in server.taken}
    assert {"Your refund for ord_42"} == {mail.header("Subject") for mail in server.taken}


async def test_data_that_would_add_a_recipient_makes_no_mail(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    An address with the end of a line in it: the refund counts, no mail goes out, and the entry
    says why, without repeating the address.
    """
    async with MailServer() as server:
        written = MAIL.format(port=server.port)
        async with a_house(engine, tmp_path, more=written) as house:
            event = refund("evt_1", email="jo@customer.example\r\nBcc: eve@evil.example")
            assert "applied" == await house.outcome(event)
            await house.call()
            ((state, part, method, _, key, error),) = await house.rows(ENTRIES)
            assert ("pending", "0", None, "evt_1") == (state, part, method, key)
            assert error.startswith("unrendered: to: a control character")
            assert "evil" not in error
    assert [] == server.taken


async def test_a_mail_that_could_be_made_at_last_goes_to_everybody(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """A subject that data broke is put right in the configuration, and the event is rendered."""
    async with MailServer() as server:
        broken = MAIL.replace("subject = ", 'subject = "{{{{ body.data.nothing }}}}" #')
        async with a_house(engine, tmp_path, more=broken.format(port=server.port)) as house:
            assert "applied" == await house.outcome(refund("evt_1", email="jo@customer.example"))
            await house.call()
            assert [("pending", "0")] == [row[:2] for row in await house.rows(ENTRIES)]
        async with a_house(engine, tmp_path, more=MAIL.format(port=server.port)) as house:
            async with engine.begin() as connection:
                rules = house.assembly.rules
                await render_again(connection, rules, sender="shop", event_id="evt_1")
            while await house.call():
                pass
            assert ["delivered", "delivered"] == [row[0] for row in await house.rows(ENTRIES)]
    assert 2 == len(server.taken)
    assert 2 == len(set(server.ids))


async def test_what_a_customer_wrote_is_text_in_a_mail_of_html(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """A name that is a link arrives as the characters that it is made of."""
    name = "<a href='https://evil.example'>Jo</a> & \"Co\""
    written = MAIL.replace("<p>We sent you {{{{ body.data.amount }}}}.</p>", "{html}")
    html = "<p title='{{ body.data.name|escape }}'>Dear {{ body.data.name|escape }}</p>"
    async with MailServer() as server:
        more = written.format(port=server.port, html=html)
        async with a_house(engine, tmp_path, more=more) as house:
            event = refund("evt_1", email="jo@customer.example", name=name)
            assert "applied" == await house.outcome(event)
            await house.call()
    read = message_from_bytes(server.taken[0].raw, policy=policy.SMTP)
    part = read.get_body(("html",))
    assert part is not None
    content = part.get_content()
    assert "<a" not in content
    assert 2 == content.count("&lt;a href=&#x27;https://evil.example&#x27;&gt;Jo&lt;/a&gt; &amp;")

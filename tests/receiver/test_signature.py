"""Stories of signatures: what is accepted, what is refused, and that nothing in between exists."""

import base64
import hashlib
import hmac
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.errors import ConfigError
from reconciler.receiver.signature import (
    CANDIDATES_MAX,
    SignatureContract,
    Verdict,
    compile_signature,
    verify,
)
from reconciler.settings.models import SignatureSettings

NOW = 1_796_119_200
BODY = b'{"b":1,  "a":2}'
PLAIN = {"timestamp_header": "X-Signature-Timestamp", "signed": "{{ timestamp }}.{{ body }}"}
COMPOUND = {
    "header": "Stripe-Signature",
    "signed": "{{ timestamp }}.{{ body }}",
    "item_separator": ",",
    "value_separator": "=",
    "timestamp_field": "t",
    "signature_field": "v1",
}
STANDARD = {
    "header": "webhook-signature",
    "timestamp_header": "webhook-timestamp",
    "id_header": "webhook-id",
    "signed": "{{ id }}.{{ timestamp }}.{{ body }}",
    "encoding": "base64",
    "item_separator": " ",
    "value_separator": ",",
    "signature_field": "v1",
}


def contract(*secrets: str, public_url: str | None = None, **settings: object) -> SignatureContract:
    return compile_signature(
        SignatureSettings.model_validate(settings),
        secrets=secrets or ("s3cret",),
        public_url=public_url,
        key="senders.shop",
    )


def mac(signed: bytes, key: str = "s3cret", algorithm: str = "sha256") -> bytes:
    return hmac.new(key.encode(), signed, algorithm).hexdigest().encode()


def plain(body: bytes = BODY, *, stamp: bytes = b"%d" % NOW, key: str = "s3cret"):
    return [
        (b"x-signature", mac(stamp + b"." + body, key)),
        (b"x-signature-timestamp", stamp),
    ]


def check(
    headers: list[tuple[bytes, bytes]],
    *secrets: str,
    body: bytes = BODY,
    now: int = NOW,
    **settings: object,
) -> Verdict:
    return verify(contract(*secrets, **settings), headers=headers, body=body, now=now)


def test_the_signature_is_over_the_bytes_as_they_came():
    """
    A body with odd spacing and order is signed as it is. Neither its re-serialisation nor any
    single altered bit is accepted under that signature (C01).
    """
    headers = plain()
    assert Verdict.ACCEPTED == check(headers, **PLAIN)
    assert Verdict.WRONG == check(headers, body=b'{"a": 2, "b": 1}', **PLAIN)
    for position in range(len(BODY) * 8):
        altered = bytearray(BODY)
        altered[position // 8] ^= 1 << position % 8
        assert Verdict.WRONG == check(headers, body=bytes(altered), **PLAIN)


def test_a_body_that_is_not_utf8_is_checked_like_any_other():
    """The bytes are never decoded for the check: right is right, and wrong is no crash (C03)."""
    body = bytes.fromhex("7B226E223A22FFFE227D")

    assert Verdict.ACCEPTED == check(plain(body), body=body, **PLAIN)
    assert Verdict.WRONG == check(plain(BODY), body=body, **PLAIN)


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (301, Verdict.TOO_OLD),
        (300, Verdict.ACCEPTED),
        (299, Verdict.ACCEPTED),
        (-299, Verdict.ACCEPTED),
        (-300, Verdict.ACCEPTED),
        (-301, Verdict.TOO_NEW),
    ],
)
def test_tolerance_has_two_sides_and_includes_its_ends(age: int, expected: Verdict):
    """A clock that is slow and one that is fast are told apart, and from a forgery (C10)."""
    stamp = b"%d" % (NOW - age)

    assert expected == check(plain(stamp=stamp), **PLAIN)
    forged = [(b"x-signature", mac(b"something else")), (b"x-signature-timestamp", stamp)]
    assert Verdict.WRONG == check(forged, **PLAIN)


def test_a_longer_tolerance_is_a_matter_of_configuration():
    """A sender that keeps its first timestamp over its retries needs one (C12)."""
    late = plain(stamp=b"%d" % (NOW - 2400))

    assert Verdict.TOO_OLD == check(late, **PLAIN)
    assert Verdict.ACCEPTED == check(late, tolerance="1h", **PLAIN)


@pytest.mark.parametrize(
    "stamp",
    [
        b"-5",
        b"+5",
        b" 1",
        b"1_000",
        b"1e9",
        b"1796119200.5",
        "١٧٩٦١١٩٢٠٠".encode(),
        b"0x10",
        b"9" * 21,
    ],
)
def test_a_timestamp_is_ascii_digits_and_nothing_else(stamp: bytes):
    """`int()` and `float()` take all of these; who signs them gets no further (11.2)."""
    assert Verdict.MALFORMED == check(plain(stamp=stamp), **PLAIN)


@pytest.mark.parametrize("stamp", [b"0", b"2147483648", b"9223372036854775808", b"1796119200000"])
def test_a_timestamp_of_another_time_is_outside_the_tolerance(stamp: bytes):
    """Also milliseconds, and what no 64 bits hold: only outside, never an error."""
    assert check(plain(stamp=stamp), **PLAIN) in {Verdict.TOO_OLD, Verdict.TOO_NEW}


def test_what_is_missing_is_missing():
    """No header, an empty one, no timestamp, an empty one."""
    signature, stamp = plain()

    assert Verdict.MISSING == check([], **PLAIN)
    assert Verdict.MISSING == check([stamp], **PLAIN)
    assert Verdict.MISSING == check([(b"x-signature", b""), stamp], **PLAIN)
    assert Verdict.MISSING == check([signature], **PLAIN)
    assert Verdict.MISSING == check([signature, (b"x-signature-timestamp", b"")], **PLAIN)


def test_a_sender_that_signs_the_body_alone_says_just_that():
    """The preset's timestamp is not asked for then: unsigned, anybody could write a new one."""
    settings = {**PLAIN, "signed": "{{ body }}"}
    signature = (b"x-signature", mac(BODY))

    assert Verdict.ACCEPTED == check([signature], **settings)
    assert Verdict.ACCEPTED == check([signature, (b"x-signature-timestamp", b"1")], **settings)
    assert Verdict.WRONG == check(plain(), **settings)


def test_a_compound_header_may_carry_the_timestamp_instead():
    """What the preset says of a header of its own does no harm: there is none."""
    v1 = b"t=%d,v1=" % NOW + mac(b"%d." % NOW + BODY)

    assert Verdict.ACCEPTED == check([(b"stripe-signature", v1)], **PLAIN | COMPOUND)


def test_two_different_timestamps_are_refused():
    """Which of them was signed is not ours to guess; the same one twice is one."""
    signature, stamp = plain()
    other = (b"x-signature-timestamp", b"%d" % (NOW + 1))

    assert Verdict.ACCEPTED == check([signature, stamp, stamp], **PLAIN)
    assert Verdict.MALFORMED == check([signature, stamp, other], **PLAIN)
    t, v1 = b"t=%d" % NOW, b"v1=" + mac(b"%d." % NOW + BODY)
    assert Verdict.ACCEPTED == check([(b"stripe-signature", b",".join([t, t, v1]))], **COMPOUND)
    both = [(b"stripe-signature", b",".join([t, b"t=1", v1]))]
    assert Verdict.MALFORMED == check(both, **COMPOUND)


def test_any_known_secret_with_any_listed_signature():
    """
    While the sender changes its secret it signs with both; we know the old one only, or both
    and get a retry signed with the old one. Schemes that we do not know are passed over (C08).
    """
    stamp = b"%d." % NOW
    new, old = b"v1=" + mac(stamp + BODY, "new"), b"v1=" + mac(stamp + BODY, "old")
    both = [(b"stripe-signature", b"t=%d," % NOW + new + b"," + old + b",v0=feed")]
    only_old = [(b"stripe-signature", b"t=%d," % NOW + old)]
    only_v0 = [(b"stripe-signature", b"t=%d,v0=" % NOW + old.removeprefix(b"v1="))]

    assert Verdict.ACCEPTED == check(both, "old", **COMPOUND)
    assert Verdict.ACCEPTED == check(both, "new", **COMPOUND)
    assert Verdict.ACCEPTED == check(only_old, "old", "new", **COMPOUND)
    assert Verdict.ACCEPTED == check(only_old, "new", "old", **COMPOUND)
    assert Verdict.WRONG == check(only_old, "new", **COMPOUND)
    assert Verdict.MALFORMED == check(only_v0, "old", **COMPOUND)


def test_several_lines_are_several_candidates():
    """The right signature may stand on any line of the header, whatever the others hold."""
    signature, stamp = plain()
    rubbish = (b"x-signature", b"rubbish")

    assert Verdict.ACCEPTED == check([rubbish, signature, stamp], **PLAIN)
    assert Verdict.ACCEPTED == check([signature, rubbish, stamp], **PLAIN)
    assert Verdict.MALFORMED == check([rubbish, rubbish, stamp], **PLAIN)


def test_ten_thousand_signatures_are_not_tried():
    """Up to a few are looked at; a header full of them is refused, the right one in it or not."""
    right = b"v1=" + mac(b"%d." % NOW + BODY)
    wrong = b"v1=" + mac(b"wrong")

    def listed(count: int) -> list[tuple[bytes, bytes]]:
        return [(b"stripe-signature", b",".join([b"t=%d" % NOW, *[wrong] * count, right]))]

    assert Verdict.ACCEPTED == check(listed(CANDIDATES_MAX - 1), **COMPOUND)
    assert Verdict.MALFORMED == check(listed(CANDIDATES_MAX), **COMPOUND)
    assert Verdict.MALFORMED == check(listed(10_000), **COMPOUND)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        pytest.param(bytes.upper, Verdict.ACCEPTED, id="upper case"),
        pytest.param(lambda t: t[:8] + b" " + t[8:], Verdict.MALFORMED, id="a space in it"),
        pytest.param(lambda t: t[:-1], Verdict.MALFORMED, id="half a byte less"),
        pytest.param(lambda t: t[:-2], Verdict.WRONG, id="a byte less"),
        pytest.param(lambda t: t + b"00", Verdict.WRONG, id="a byte more"),
        pytest.param(lambda t: "é".encode() + t[2:], Verdict.MALFORMED, id="not ASCII"),
        pytest.param(lambda t: b"\xff\xfe" + t[2:], Verdict.MALFORMED, id="not UTF-8"),
        pytest.param(lambda t: b"sha512=" + t, Verdict.MALFORMED, id="another prefix"),
    ],
)
def test_hex_is_read_strictly_but_for_its_case(write, expected: Verdict):
    """Bytes are compared, so case does not matter and non-ASCII is no crash."""
    signature, stamp = plain()

    assert expected == check([(b"x-signature", write(signature[1])), stamp], **PLAIN)


def standard(body: bytes = BODY, *, event_id: bytes = b"msg_1", write=base64.b64encode):
    digest = hmac.digest(b"s3cret", b"%b.%d.%b" % (event_id, NOW, body), "sha256")
    return [
        (b"webhook-id", event_id),
        (b"webhook-timestamp", b"%d" % NOW),
        (b"webhook-signature", b"v1," + write(digest)),
    ]


def test_base64_is_the_standard_alphabet_with_its_padding():
    """Base64url, missing padding and stray bits are other texts, and so are refused."""

    def stray(digest: bytes) -> bytes:
        text = base64.b64encode(digest)
        return text[:-2] + bytes([text[-2] + 1]) + text[-1:]

    def without_url_signs(body: bytes) -> bytes:
        return base64.b64encode(hmac.digest(b"s3cret", b"msg_1.%d.%b" % (NOW, body), "sha256"))

    body = next(b"%d" % n for n in range(1000) if b"+" in without_url_signs(b"%d" % n))
    assert Verdict.ACCEPTED == check(standard(body), body=body, **STANDARD)
    for write in (base64.urlsafe_b64encode, lambda d: base64.b64encode(d).rstrip(b"="), stray):
        assert Verdict.MALFORMED == check(standard(body, write=write), body=body, **STANDARD)


def test_an_id_cannot_swallow_the_timestamp():
    """`a.1` and `2` are joined like `a` and `1.2`: where a full stop joins, none is in an id."""
    assert Verdict.ACCEPTED == check(standard(), **STANDARD)
    assert Verdict.MALFORMED == check(standard(event_id=b"msg.1"), **STANDARD)
    assert Verdict.MISSING == check(standard(event_id=b""), **STANDARD)
    twice = [*standard(), (b"webhook-id", b"msg_2")]
    assert Verdict.MALFORMED == check(twice, **STANDARD)


def test_the_url_that_is_signed_is_the_configured_one():
    """Behind a proxy we cannot know what the sender has called; `public_url` says it."""
    settings = {"signed": "{{ method }}|{{ url }}|{{ body }}"}
    url = "https://hooks.example/webhooks/shop"
    signed = [(b"x-signature", mac(b"POST|https://hooks.example/webhooks/shop|" + BODY))]

    assert Verdict.ACCEPTED == check(signed, public_url=url, **settings)
    assert Verdict.WRONG == check(signed, public_url=url + "/", **settings)


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha512"])
def test_every_declared_algorithm(algorithm: str):
    """The scheme decides, not the length or the prefix of what is sent."""
    headers = [(b"x-signature", mac(BODY, algorithm=algorithm))]

    for scheme in ("sha1", "sha256", "sha512"):
        expected = Verdict.ACCEPTED if scheme == algorithm else Verdict.WRONG
        assert expected == check(headers, scheme=f"hmac-{scheme}")


def test_keys_are_decoded_as_declared():
    """The same `whsec_` is part of the key at Stripe, and a mark before base64 elsewhere."""
    key = b"0123456789abcdefghijklmn\xff"
    written = "whsec_" + base64.b64encode(key).decode().rstrip("=")
    headers = [(b"x-signature", hmac.new(key, BODY, hashlib.sha256).hexdigest().encode())]

    assert Verdict.ACCEPTED == check(headers, written, key="base64", key_prefix="whsec_")
    assert Verdict.ACCEPTED == check(headers, key.hex(), key="hex")
    assert Verdict.WRONG == check(headers, written)


def test_without_a_secret_nothing_is_accepted():
    """A sender that is only read has none; an empty key would be everybody's (C07)."""
    nobody = compile_signature(SignatureSettings(), secrets=(), public_url=None, key="senders.shop")

    for key in ("", "   "):
        assert Verdict.WRONG == verify(
            nobody, headers=[(b"x-signature", mac(BODY, key))], body=BODY, now=NOW
        )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"signed": "{{ body|upper }}"}, "only names may be in it"),
        ({"signed": "{{ nonce }}{{ body }}"}, "there is no `nonce`"),
        ({"signed": "{{ timestamp }}.{{ body }}"}, "`timestamp` is signed"),
        ({"signed": "{{ id }}.{{ body }}"}, "`id_header`"),
        ({"signed": "{{ url }}{{ body }}"}, "`public_url`"),
        ({"signed": "constant"}, "`body` must be in it"),
        ({"value_separator": "="}, "which items are signatures"),
        ({"key": "base64"}, "the secret is not base64"),
        ({"key": "hex"}, "the secret is not hex"),
        ({"key_prefix": "s3cr*t"}, "the secret is blank"),
    ],
)
def test_what_could_never_work_is_said_at_the_start(settings: dict[str, str], said: str):
    """Each with its key, and none with the secret in it."""
    with pytest.raises(ConfigError) as caught:
        contract("s3cr*t", **settings)

    assert said in str(caught.value)
    assert "senders.shop" in str(caught.value)
    assert "s3cr*t" not in str(caught.value)


@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from([b"stripe-signature", b"webhook-id", b"other"]),
            st.binary(max_size=60) | st.just(b"t=1,v1=00"),
        ),
        max_size=5,
    ),
    body=st.binary(max_size=50),
)
def test_no_header_makes_it_raise_or_accept(headers: list[tuple[bytes, bytes]], body: bytes):
    """Whatever a stranger sends is refused, and that is all that happens."""
    assert Verdict.ACCEPTED != check(headers, body=body, **COMPOUND)
    assert Verdict.ACCEPTED != check(headers, body=body, **STANDARD)


def test_a_secret_of_another_sender_is_a_wrong_one():
    """What is rightly signed for somebody else is nothing here."""
    fate = random.Random(7)
    for _ in range(20):
        secret = f"{fate.getrandbits(64):x}"
        assert Verdict.WRONG == check(plain(key=secret), **PLAIN)

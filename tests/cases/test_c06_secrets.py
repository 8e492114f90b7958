"""Secrets: a line ending is no part of one, and a blank one is none."""

import hmac
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.errors import ConfigError
from reconciler.settings import load
from tests.receiver.receiving import receiving
from tests.receiver.senders import NOW, SHOP, body_of, contracts_of, order, signed

pytestmark = pytest.mark.anyio

OTHERS = """
[database]
url = "postgresql://somebody@127.0.0.1/app"
password = "{place}"

[senders.shop.api]
base_url = "http://127.0.0.1:9"
bearer = "{place}"
headers = {{ X-Api-Key = "{place}" }}

[destinations.payments]
base_url = "http://127.0.0.1:9"
bearer = "{place}"
"""


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("place", ["file", "credential", "env"])
async def test_a_secret_that_an_editor_ended_is_the_secret(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, place: str
) -> None:
    """Mounted as a file, as a credential of systemd, or exported by `$(cat file)` and worse."""
    secret = "whsec_test with a space"  # noqa: S105
    file = tmp_path / "secret"
    file.write_bytes((secret + ending).encode())
    reference = {"file": f"file:{file}", "credential": "credential:secret", "env": "env:SHOP"}
    config = tmp_path / "reconciler.toml"
    config.write_text(SHOP.replace("env:SHOP_SECRET", reference[place]))
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "SHOP": secret + ending}
    monkeypatch.setattr(
        "tests.receiver.receiving.loaded", lambda *_, **__: load(config, environ=environ)
    )
    body = body_of(order())
    async with receiving(engine, tmp_path) as shop:
        right = await shop.post(body, headers=signed(body, secret=secret))
        with_the_ending = await shop.post(body, headers=signed(body, secret=secret + ending))
        trimmed = await shop.post(body, headers=signed(body, secret=secret.replace(" ", "")))

    assert [200, 401, 401] == [each.status_code for each in (right, with_the_ending, trimmed)]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_keys_that_are_decoded_end_with_their_file_too(tmp_path: Path, ending: str) -> None:
    """Base64 with a prefix: a line ending would make it unreadable, or another key."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105
    (tmp_path / "secret").write_bytes((secret + ending).encode())
    config = tmp_path / "reconciler.toml"
    text = f'[senders.std]\npreset = "standard-webhooks"\nsecrets = ["file:{tmp_path}/secret"]\n'
    config.write_text(text)
    (contract,) = contracts_of(load(config, environ={})).values()
    assert 24 == len(contract.signature.keys[0])


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_credentials_that_go_out_lose_their_line_ending_too(tmp_path: Path, ending: str) -> None:
    """A token that is sent in a header, and the database's password."""
    (tmp_path / "secret").write_bytes(b"shop-secret" + ending.encode())
    (tmp_path / "token").write_bytes(b"a-token" + ending.encode())
    lines = [line for line in SHOP.splitlines() if not line.startswith("api = ")]
    text = "\n".join(lines)
    config = tmp_path / "reconciler.toml"
    place = f"file:{tmp_path}/token"
    config.write_text(
        text.replace("env:SHOP_SECRET", f"file:{tmp_path}/secret") + OTHERS.format(place=place)
    )
    found = load(config, environ={})
    assert "a-token" == found.secrets.resolve(place)
    assert "a-token" == found.secrets.header(place)


BLANK = {
    "nothing": "",
    "spaces": "   ",
    "a line ending": "\n",
    "line endings and spaces": " \t\r\n\n",
    "a space that does not break": "\u00a0\n",
    "a byte order mark": "\ufeff\n",
    "spaces without width": "\u200b\u200b",
    "zero bytes": "\0\0",
}


@pytest.mark.parametrize("blank", BLANK.values(), ids=BLANK)
@pytest.mark.parametrize("rotation", ["the only one", "beside a real one"])
def test_a_blank_secret_stops_the_start(tmp_path: Path, blank: str, rotation: str) -> None:
    """
    An unset slot of the rotation, alone or beside a real secret: whoever knows that it is blank
    could sign. It is said with file and key, and never carried along.
    """
    (tmp_path / "blank").write_text(blank)
    references = [f'"file:{tmp_path}/blank"']
    if rotation == "beside a real one":
        references.insert(0, '"env:SHOP_SECRET"')
    config = tmp_path / "reconciler.toml"
    config.write_text(SHOP.replace('"env:SHOP_SECRET"', ", ".join(references)))
    with pytest.raises(ConfigError) as refused:
        load(config, environ={"SHOP_SECRET": "real"})
    assert "blank" in str(refused.value)
    (problem,) = refused.value.problems
    assert problem.key == f"senders.shop.secrets[{len(references) - 1}]"


@pytest.mark.parametrize("variable", ["", " ", "\n"])
def test_a_blank_variable_is_no_secret_either(tmp_path: Path, variable: str) -> None:
    config = tmp_path / "reconciler.toml"
    config.write_text(SHOP)
    with pytest.raises(ConfigError, match="blank"):
        load(config, environ={"SHOP_SECRET": variable})


@pytest.mark.parametrize("secret", ["whsec_", "whsec_ ", "whsec_ICAg", "whsec_AAAA", "whsec_===="])
def test_a_prefix_with_nothing_behind_it_is_blank(tmp_path: Path, secret: str) -> None:
    """What is left when the prefix is cut off and the rest decoded is the key: blank here."""
    config = tmp_path / "reconciler.toml"
    config.write_text('[senders.std]\npreset = "standard-webhooks"\nsecrets = ["env:STD"]\n')
    with pytest.raises(ConfigError):
        contracts_of(load(config, environ={"STD": secret}))


async def test_forgeries_with_blank_keys_are_refused(engine: AsyncEngine, tmp_path: Path) -> None:
    """Signed with nothing, with spaces, with a line ending, and not at all."""
    body = body_of(order())
    async with receiving(engine, tmp_path) as shop:
        for key in (b"", b" ", b"   ", b"\n", b"\0"):
            mac = hmac.new(key, b"%d.%b" % (NOW, body), "sha256").hexdigest()
            forged = {"X-Signature": mac, "X-Signature-Timestamp": str(NOW)}
            assert 401 == (await shop.post(body, headers=forged)).status_code
        empty = {"X-Signature": "", "X-Signature-Timestamp": str(NOW)}
        assert 401 == (await shop.post(body, headers=empty)).status_code
        assert {} == await shop.counts()

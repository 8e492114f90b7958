"""Files, overrides, presets and secrets become one configuration, or one list of faults."""

from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.errors import ConfigError, Problem
from reconciler.operations.checking import check
from reconciler.settings import Secrets, Settings, examine, lint, load

SECRET = {"SHOP_SECRET": "a-shop-secret"}
SHOP = '[senders.shop]\nsecrets = ["env:SHOP_SECRET"]\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "presets").mkdir()
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path | None, environ=None) -> list[Problem]:
    with pytest.raises(ConfigError) as refused:
        load(path, environ=SECRET | (environ or {}))
    return list(refused.value.problems)


def test_files_lie_over_each_other_by_name(directory: Path):
    """conf.d follows the main file in the order of names; tables merge, arrays replace."""
    main = write(directory / "main.toml", SHOP + 'grace = "1m"\n[server]\nlisten = "127.0.0.1:1"\n')
    write(directory / "conf.d" / "20-late.toml", '[senders.shop]\nsecrets = ["env:NEW"]\n')
    write(directory / "conf.d" / "10-early.toml", '[senders.shop]\nsecrets = ["env:A", "env:B"]\n')
    write(directory / "conf.d" / "not-toml.txt", "[[[")
    write(directory / "conf.d" / ".#20-late.toml", "[[[")

    loaded = load(main, environ={"NEW": "new"})

    assert ("env:NEW",) == loaded.settings.senders["shop"].secrets
    assert timedelta(minutes=1) == loaded.settings.senders["shop"].grace
    assert "127.0.0.1:1" == loaded.settings.server.listen
    names = ["main.toml", "10-early.toml", "20-late.toml", "generic.toml"]
    assert names == [file.name for file in loaded.files]


def test_a_fault_is_found_in_the_file_that_made_it(directory: Path):
    """What a later file replaced is judged where it was said last; what it only added to, first."""
    main = write(directory / "main.toml", SHOP + 'grace = "1m"\n[relay]\nlease = "x"\n')
    late = write(
        directory / "conf.d" / "late.toml", '[relay]\npoll = "1s"\nlease = "y"\n[senders]\n'
    )

    (problem,) = problems(main)

    assert (late, 3, "relay.lease") == (problem.file, problem.line, problem.key)


def test_everything_that_is_wrong_is_said_at_once(directory: Path):
    """
    Five people made one mistake each, in syntax's reach and beyond it: types, names, rules
    between two keys, secrets. Nobody has to run `check` five times.
    """
    main = write(
        directory / "main.toml",
        SHOP
        + 'grace = "5 minuts"\nretry_window = "60d"\n'
        + '[destinations.pay]\nbase_url = "https://pay.example"\ntimeout = "2m"\nconcurency = 2\n'
        + '[destinations.mail]\nbearer = "env:MAIL_TOKEN"\n',
    )
    late = write(
        directory / "conf.d" / "late.toml",
        '[server]\nadmin_listen = "0.0.0.0:1"\n[destinations.mail]\n',
    )

    found = [(problem.file, problem.line, problem.key) for problem in problems(main)]

    assert found == [
        (late, 2, "server.admin_listen"),
        (main, 3, "senders.shop.grace"),
        (main, 4, "senders.shop.retry_window"),
        (main, 7, "destinations.pay.timeout"),
        (main, 8, "destinations.pay.concurency"),
        (main, 9, "destinations.mail.base_url"),
        (main, 10, "destinations.mail.bearer"),
    ]


def test_broken_syntax_is_told_for_every_file(directory: Path):
    """Two files cannot be read; both are named, and nothing is guessed about the rest."""
    main = write(directory / "main.toml", SHOP + "grace = 5m\n")
    late = write(directory / "conf.d" / "late.toml", "[relay\n")

    assert [(main, 3), (late, 1)] == [(each.file, each.line) for each in problems(main)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'\xef\xbb\xbf[server]\nlisten = "x"\n', "byte order mark"),
        ('# ü\n[server]\nlisten = "ü"\n'.encode("latin-1"), "UTF-8"),
        (b"[" * 5000, "TOML"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a = " + b"[" * 90 + b"]" * 90, "nested too deeply"),
        (b"a." * 2000 + b"a = 1", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_toml_at_all(directory: Path, content: bytes, words: str):
    """Whatever the bytes are, the answer is a sentence with the file in it."""
    main = directory / "main.toml"
    main.write_bytes(content)

    (problem,) = problems(main)

    assert main == problem.file
    assert words in problem.message


def test_bytes_that_are_no_text_are_no_secret(directory: Path):
    """What Python says of such bytes quotes one of them and its place; we say neither."""
    main = write(directory / "main.toml", SHOP)

    (problem,) = problems(main, environ={"SHOP_SECRET": "planted\udcff"})

    assert "SHOP_SECRET is not UTF-8" in problem.message
    assert "udcff" not in problem.message


def test_an_override_that_is_nested_without_end(directory: Path):
    """A value of the environment is as much a stranger's as a file."""
    main = write(directory / "main.toml", SHOP)

    (problem,) = problems(
        main, environ=SECRET | {"RECONCILER_SENDERS__SHOP__SECRETS": "[" * 100_000}
    )

    assert "senders.shop.secrets" == problem.key


def test_where_the_main_file_is_looked_for(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """--config, then RECONCILER_CONFIG, then ./config/reconciler.toml, then /etc."""
    (directory / "config").mkdir()
    monkeypatch.chdir(directory)
    here = write(directory / "config" / "reconciler.toml", SHOP)
    named = write(directory / "named.toml", SHOP)
    given = write(directory / "given.toml", SHOP)
    environ = SECRET | {"RECONCILER_CONFIG": str(named)}

    assert given == load(given, environ=environ).path
    assert named == load(environ=environ).path
    assert here == load(environ=SECRET).path.resolve()
    here.unlink()
    (problem,) = problems(None)
    assert "/etc/reconciler/reconciler.toml" in problem.message
    (problem,) = problems(directory / "nowhere.toml")
    assert "No such file" in problem.message


def test_the_environment_overrides_every_value(directory: Path):
    """Texts, numbers, booleans, durations, lists and tables; deep ones, and new ones."""
    main = write(directory / "main.toml", SHOP + '[relay]\npoll = "1s"\nlease = "50s"\n')
    prefix = "RECONCILER_SENDERS__SHOP__"
    environ = {
        "RECONCILER_SERVER__LISTEN": "127.0.0.1:0",
        "RECONCILER_DATABASE__POOL_SIZE": "5",
        "RECONCILER_RELAY": '{"poll": "2s"}',
        "NEW": "n",
        f"{prefix}SECRETS": '["env:NEW"]',
        f"{prefix}EVENT__OCCURRED_AT__VALUE": "made",
        f"{prefix}EVENT__OCCURRED_AT__FORMAT": "ms",
        f"{prefix}SIGNATURE__REFUSED_STATUS": "403",
        f"{prefix}API__BASE_URL": "http://127.0.0.1:9",
        f"{prefix}RESOURCES__ORDER": '{"key": "id", "version": "v", "thin": true}',
        f"{prefix}RESOURCES__ORDER__GET__PATH": "/o/{{ key }}",
        f"{prefix}RESOURCES__ORDER__THIN": "false",
        "RECONCILER_DESTINATIONS__PAY__BASE_URL": "http://127.0.0.1:8",
        "RECONCILER_DESTINATIONS__PAY__ORDERED": "true",
        "RECONCILER_DESTINATIONS__PAY__NOT_DONE": "[503]",
    }

    settings = load(main, environ=environ).settings

    shop, pay = settings.senders["shop"], settings.destinations["pay"]
    assert "127.0.0.1:0" == settings.server.listen
    assert 5 == settings.database.pool_size
    assert timedelta(seconds=2) == settings.relay.poll
    assert timedelta(seconds=50) == settings.relay.lease
    assert ("env:NEW",) == shop.secrets
    assert ("made", "ms") == (shop.event.occurred_at.value, shop.event.occurred_at.format)
    assert 403 == shop.signature.refused_status
    assert ("id", False) == (shop.resources["order"].key, shop.resources["order"].thin)
    assert (True, (503,)) == (pay.ordered, pay.not_done)


@pytest.mark.parametrize(
    ("name", "value", "key", "words"),
    [
        ("RECONCILER_SERVER__LISTN", "x", "server.listn", 'did you mean "listen"'),
        ("RECONCILER_SERVER_LISTEN", "x", "RECONCILER_SERVER_LISTEN", "RECONCILER_SERVER__"),
        ("RECONCILER_SREVER__LISTEN", "x", "RECONCILER_SREVER__LISTEN", "RECONCILER_SERVER__"),
        ("RECONCILER_FOO", "XYZZY", "RECONCILER_FOO", "no setting"),
        ("RECONCILER_RELAY__LEASE", "60", "relay.lease", '"60s"'),
        ("RECONCILER_DATABASE__POOL_SIZE", "ten", "database.pool_size", "whole number"),
        ("RECONCILER_SENDERS__SHOP__SECRETS", "XYZZY", "senders.shop.secrets", "brackets"),
        ("RECONCILER_SENDERS__SHOP__SECRETS", '["XYZZY"]', "senders.shop.secrets[0]", "env:NAME"),
        ("RECONCILER_DATABASE__PASSWORD", "XYZZY", "database.password", "env:NAME"),
        ("RECONCILER_DATABASE__URL", "postgresql://a:XYZZY@h/d", "database.url", "env:NAME"),
        ("RECONCILER_RELAY", '{"lease": "XYZZY"}', "relay.lease", "duration"),
    ],
)
def test_a_wrong_override_names_its_variable(directory: Path, name, value, key, words):
    """No file said it, so the variable is named in its place; the value never is."""
    main = write(directory / "main.toml", SHOP + "[relay]\n[server]\n")

    (problem,) = problems(main, {name: value})

    assert (key, None, None) == (problem.key, problem.file, problem.line)
    assert words in problem.message
    assert name in str(problem)
    assert "XYZZY" not in str(problem)


def test_variables_that_are_no_settings_are_left_alone(directory: Path):
    """Ours that say other things, a test's own, and those that the configuration refers to."""
    main = write(directory / "main.toml", SHOP.replace("SHOP_SECRET", "RECONCILER_SHOP_SECRET"))
    environ = {
        "RECONCILER_CONFIG": "elsewhere.toml",
        "RECONCILER_PG_BINDIR": "/usr/lib/postgresql/15/bin",
        "RECONCILER_TEST_SLOW": "1",
        "RECONCILER_SHOP_SECRET": "a-shop-secret",
    }

    assert "a-shop-secret" == load(main, environ=environ).secrets.resolve(
        "env:RECONCILER_SHOP_SECRET"
    )


def test_a_sender_lies_over_its_preset_table_by_table(directory: Path):
    """What the sender says wins; of the preset's tables the rest stays. A local preset wins too."""
    write(
        directory / "presets" / "stripe.toml",
        '[signature]\nheader = "Mine"\n[event]\nid = "i"\ntype = "t"\n',
    )
    main = write(
        directory / "main.toml",
        SHOP
        + '[senders.shop.signature]\ntolerance = "1m"\n'
        + '[senders.pay]\npreset = "stripe"\nsecrets = ["env:SHOP_SECRET"]\nevent.id = "other"\n',
    )

    senders = load(main, environ=SECRET).settings.senders

    assert ("X-Signature", timedelta(minutes=1)) == (
        senders["shop"].signature.header,
        senders["shop"].signature.tolerance,
    )
    assert ("Mine", "other", "t") == (
        senders["pay"].signature.header,
        senders["pay"].event.id,
        senders["pay"].event.type,
    )


def test_a_faulty_preset_is_named_itself(directory: Path):
    """The mistake stands in the preset's file, not in the one that names it."""
    mine = write(
        directory / "presets" / "mine.toml",
        'secrets = ["env:A"]\n[signature]\ntolerence = "5m"\n[event]\nid = "i"\ntype = "t"\n',
    )
    main = write(directory / "main.toml", SHOP + 'preset = "mine"\n')

    found = [(each.file, each.line, each.key) for each in problems(main)]

    assert [(mine, 1, "secrets"), (mine, 3, "senders.shop.signature.tolerence")] == found


@pytest.mark.parametrize(
    ("said", "header", "field"),
    [
        ("", "X-Signature-Timestamp", None),
        ('timestamp_field = "t"\nsignature_field = "v1"\n', None, "t"),
        ('signed = "{{ body }}"\n', None, None),
        ('signed = "{{ body }}"\ntimestamp_header = "X-Time"\n', "X-Time", None),
        ('timestamp_header = "X-Time"\n', "X-Time", None),
    ],
)
def test_a_time_of_signing_stands_in_one_place(directory: Path, said, header, field):
    """
    The generic preset has the time in a header. A sender that has it in a field of a compound
    one, or signs without a time, must not also be asked for the preset's header.
    """
    main = write(directory / "main.toml", SHOP + "[senders.shop.signature]\n" + said)

    signature = load(main, environ=SECRET).settings.senders["shop"].signature

    assert (header, field) == (signature.timestamp_header, signature.timestamp_field)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("secret", ["whsec_test", " two words ", "a\nb", "tab\t"])
def test_line_endings_at_the_end_are_no_part_of_a_secret(directory: Path, ending, secret):
    """
    An editor put a line ending behind the secret (C06). It is taken off, whichever way the
    secret came; spaces and what stands inside are the secret's own.
    """
    file = write(directory / "secret", "")
    file.write_bytes((secret + ending).encode())
    references = (f"file:{file}", "credential:secret", "env:SHOP_SECRET")
    main = write(
        directory / "main.toml", f"[senders.shop]\nsecrets = {list(references)}\n".replace("'", '"')
    )
    environ = {"CREDENTIALS_DIRECTORY": str(directory), "SHOP_SECRET": secret + ending}

    loaded = load(main, environ=environ)

    assert {secret} == {loaded.secrets.resolve(reference) for reference in references}
    assert secret not in repr(loaded.secrets)
    assert secret not in repr(loaded)


@pytest.mark.parametrize("content", ["", "   ", "\n", "\r\n", " \t\n", "\0\0"])
def test_a_blank_secret_is_refused(directory: Path, content: str):
    """An unset rotation slot would let anybody sign with an empty key (C07)."""
    file = write(directory / "secret", "")
    file.write_bytes(content.encode())
    main = write(
        directory / "main.toml",
        f'[senders.shop]\nsecrets = ["env:SHOP_SECRET", "file:{file}", "credential:secret"]\n',
    )

    found = problems(main, {"CREDENTIALS_DIRECTORY": str(directory)})

    assert ["senders.shop.secrets[1]", "senders.shop.secrets[2]"] == [each.key for each in found]
    assert all("blank" in each.message for each in found)


def test_a_secret_file_has_bounds(directory: Path):
    """A device that never ends, or bytes that are no text, are a sentence, not a hang."""
    (directory / "binary").write_bytes(b"\xff\xfe")
    main = write(
        directory / "main.toml",
        f'[senders.shop]\nsecrets = ["file:/dev/zero", "file:{directory}/binary"]\n',
    )

    assert ["64 KiB", "UTF-8"] == [
        word for each in problems(main) for word in ("64 KiB", "UTF-8") if word in each.message
    ]


def test_what_follows_from_a_mistake_is_not_told(directory: Path):
    """
    A destination lacks its address, a list of secrets has one bad item, a preset is unknown:
    each is one mistake, and one message.
    """
    main = write(
        directory / "main.toml",
        '[senders.shop]\npreset = "genric"\nsecrets = ["XYZZY"]\n'
        '[destinations.pay]\n[effects.a]\non = ["shop:b"]\ndestination = "pay"\n'
        'request = "POST /"\n',
    )

    keys = [problem.key for problem in problems(main)]

    assert ["senders.shop.preset", "senders.shop.secrets[0]", "destinations.pay.base_url"] == keys


def test_items_of_a_list_keep_their_numbers(directory: Path):
    """The first item is wrong and set aside; a fault of the second is still the second's."""
    main = write(
        directory / "main.toml",
        SHOP
        + '[senders.shop.api]\nbase_url = "http://127.0.0.1:9"\nallow_private = [\n'
        + '5,\n"10.0.0.0/8",\n"nowhere",\n]\n',
    )

    examined = examine(main, environ=SECRET)
    later = Problem(key="senders.shop.api.allow_private[0]", message="from a later check")

    assert [(6, "senders.shop.api.allow_private[0]"), (8, "senders.shop.api.allow_private[2]")] == [
        (each.line, each.key) for each in examined.problems
    ]
    assert ("10.0.0.0/8", "nowhere") == examined.loaded.settings.senders["shop"].api.allow_private
    assert [(7, "senders.shop.api.allow_private[1]")] == [
        (each.line, each.key) for each in examined.loaded.place([later])
    ]


def test_the_order_of_the_file_is_kept(directory: Path):
    """Statements and effects run in file order, so nothing may shuffle what holds them."""
    names = ("zebra", "shop", "alpha")
    sender = '[senders.{0}]\nsecrets = ["env:SHOP_SECRET"]\n'
    main = write(directory / "main.toml", "".join(map(sender.format, names)))

    assert list(names) == list(load(main, environ=SECRET).settings.senders)


@pytest.mark.anyio
async def test_check_warns_of_an_address_that_the_guard_will_not_let_through(directory: Path):
    """No name has to be looked up to know that no call will ever get there."""
    main = write(
        directory / "main.toml",
        SHOP
        + '[destinations.local]\nbase_url = "http://127.0.0.1:9301"\n'
        + '[destinations.said]\nbase_url = "http://127.0.0.1:9301"\n'
        + 'allow_private = ["127.0.0.0/8"]\n'
        + '[destinations.named]\nbase_url = "https://api.example.com"\n',
    )

    found = await check(main, environ=SECRET)

    assert [] == found["problems"]
    assert [("destinations.local.base_url", 4)] == [
        (each["key"], each["line"])
        for each in found["warnings"]
        if "127.0.0.1 may not be reached" in each["text"]
    ]


def test_lint_says_what_is_allowed_and_probably_not_meant(directory: Path):
    """None of these stops the daemon; each names its key, and its place."""
    token = write(directory / "token", "a-token")
    token.chmod(0o644)
    main = write(
        directory / "main.toml",
        SHOP
        + '[senders.shop.signature]\ntolerance = "48h"\n'
        + '[senders.other]\nsecrets = ["env:SHOP_SECRET"]\nkeep_claims = "3d"\n'
        + f'[destinations.pay]\nbase_url = "http://pay.example"\nbearer = "file:{token}"\n'
        + 'key_ttl = "1m"\n',
    )
    loaded = load(main, environ=SECRET)

    warnings = loaded.place(lint(loaded.settings, secrets=loaded.secrets))

    assert {
        (4, "senders.shop.signature.tolerance"),
        (6, "senders.other.secrets[0]"),
        (5, "senders.other.keep_bodies"),
        (8, "destinations.pay"),
        (9, "destinations.pay.base_url"),
        (10, "destinations.pay.bearer"),
        (11, "destinations.pay.key_ttl"),
    } == {(each.line, each.key) for each in warnings}


def test_defaults_are_a_configuration():
    """The models alone make sense: everything has a default but what only you can know."""
    settings = Settings()

    assert timedelta(days=90) == settings.retention.claims
    assert "Secrets(0 read)" == repr(Secrets({}))

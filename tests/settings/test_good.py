"""Configurations that are right: nothing is refused that an operator may say."""

from pathlib import Path

import pytest

from reconciler.data import config_directory
from reconciler.operations.assembly import assemble
from reconciler.settings import lint
from reconciler.settings.documents import walk
from reconciler.settings.files import read
from reconciler.settings.positions import find_positions

GOOD = sorted(Path(__file__).parent.glob("good/*.toml"))
SHIPPED = sorted(config_directory().glob("**/*.toml"))
ENVIRONMENT = {
    "SHOP_SECRET": "a-shop-secret",
    "SVIX_SECRET": "whsec_c2VjcmV0IG9mIHN2aXg",
    "API_TOKEN": "an-api-token",
    "ADMIN_TOKEN": "a-token-of-thirty-two-characters",
    "DATABASE_PASSWORD": "a password",
}


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_a_good_file_is_taken(file):
    """What the file says is taken whole and compiles, and every secret that it names is had."""
    loaded = assemble(file, environ=ENVIRONMENT).loaded

    assert file == loaded.path
    assert file in loaded.files
    assert "a-shop-secret" not in repr(loaded)


def test_the_shipped_example_is_right_and_gives_no_cause_for_worry():
    """The file that people begin with is refused nowhere, and lint has nothing to say."""
    names = ("SHOP_SECRET", "SHOP_SECRET_OLD", "SHOP_API_TOKEN", "PAYMENTS_TOKEN", "MAIL_TOKEN")
    example = config_directory() / "reconciler.toml"
    head = example.read_text(encoding="utf-8").partition("\n\n")[0]

    loaded = assemble(example, environ={name: f"value-of-{name}" for name in names}).loaded

    assert all(name in head for name in names)
    assert [] == lint(loaded.settings, secrets=loaded.secrets)


def test_the_alert_of_the_shipped_example_only_has_to_be_uncommented(tmp_path):
    """What is shown in comments is taken as it stands, beside all that is shown without."""
    text = (config_directory() / "reconciler.toml").read_text(encoding="utf-8")
    before, header, alert = text.partition("# [effects.alert]\n")
    lines = [line.removeprefix("# ") for line in (header + alert).splitlines()]
    main = tmp_path / "reconciler.toml"
    main.write_text(before + "\n".join(lines), encoding="utf-8")
    names = ("SHOP_SECRET", "SHOP_SECRET_OLD", "SHOP_API_TOKEN", "PAYMENTS_TOKEN", "MAIL_TOKEN")

    loaded = assemble(main, environ={name: f"value-of-{name}" for name in names}).loaded

    assert "alert" in loaded.settings.effects
    assert [] == lint(loaded.settings, secrets=loaded.secrets)


@pytest.mark.parametrize(
    "file", [*GOOD, *SHIPPED], ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_every_key_has_its_line(file):
    """
    tomllib says which keys there are; for each of them we know a line, and the key, or the
    item of a list, does stand on that line.
    """
    text = file.read_bytes().decode()
    lines = text.splitlines()
    positions = find_positions(text)

    for path, value in walk(read(file).tree):
        if not path:
            continue
        line = lines[positions[path] - 1]
        if isinstance(path[-1], str):
            assert path[-1] in line
        elif isinstance(value, str):
            assert value.split("\n", maxsplit=1)[0] in line

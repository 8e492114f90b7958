"""The data files are where the program looks for them, installed or in a checkout."""

import tomllib

from reconciler.data import config_directory, migrations_directory


def test_the_shipped_configuration_is_found():
    """The example, the presets and the profiles: TOML that can be read."""
    shipped = [config_directory() / "reconciler.toml", *config_directory().glob("*/*.toml")]
    assert {"generic", "github", "standard-webhooks", "stripe", "adyen"} <= {
        path.stem for path in shipped
    }
    for path in shipped:
        assert tomllib.loads(path.read_text())


def test_the_migrations_are_found():
    """Alembic's environment and at least the first migration."""
    assert (migrations_directory() / "env.py").is_file()
    assert (migrations_directory() / "script.py.mako").is_file()
    assert list(migrations_directory().glob("versions/0001_*.py"))

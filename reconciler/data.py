"""Where the files lie that are data, not code: in the installed package, or in a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).parent


def config_directory() -> Path:
    """The shipped configuration: the commented example, `presets/` and `destinations/`."""
    return data_directory("config")


def migrations_directory() -> Path:
    """The Alembic environment."""
    return data_directory("migrations")


def data_directory(name: str) -> Path:
    installed = PACKAGE / name
    return installed if installed.is_dir() else PACKAGE.parent / name

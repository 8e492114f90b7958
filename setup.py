"""Puts `config/` and `migrations/` inside the package; units and a manual page beside it."""

import sys
from pathlib import Path

from setuptools import find_packages, setup

DATA = ("config", "migrations")
MANUAL = Path("build/man/reconciler.1")

#: Below the prefix as below /usr: `/opt/reconciler/lib/systemd/system/reconciler.service`.
UNITS = {
    "lib/systemd/system": ["systemd/reconciler.service", "systemd/reconciler.socket"],
    "lib/sysusers.d": ["systemd/sysusers.d/reconciler.conf"],
    "lib/tmpfiles.d": ["systemd/tmpfiles.d/reconciler.conf"],
    "share/doc/reconciler": ["systemd/override.conf"],
}

places = {f"reconciler.{name}": name for name in DATA}
for name in DATA:
    for directory in sorted(path for path in Path(name).rglob("*") if path.is_dir()):
        if directory.name != "__pycache__":
            places[f"reconciler.{directory.as_posix().replace('/', '.')}"] = directory.as_posix()


def manual() -> str:
    """Make reconciler(1) of what `--help` says; where it belongs, as setuptools wants it."""
    sys.path.insert(0, str(Path(__file__).parent))
    from reconciler.cli.manual import page  # noqa: PLC0415 - not before its place is known

    MANUAL.parent.mkdir(parents=True, exist_ok=True)
    MANUAL.write_text(page(), encoding="utf-8")
    return str(MANUAL)


setup(
    packages=[*find_packages(include=["reconciler*", "outbox*"]), *places],
    package_dir=places,
    package_data={"": ["*", "*/*"]},
    exclude_package_data={"": ["*.pyc", "__pycache__/*"]},
    data_files=[*UNITS.items(), ("share/man/man1", [manual()])],
)

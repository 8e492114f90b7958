"""The shipped units: what can be said of them without booting them (`tests.nspawn` does)."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNITS = ROOT / "systemd"
WORST = 15  #: tenths of a point of exposure

#: A host without systemd cannot judge its units: said aloud, never passed over.
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="LOUD: the units are NOT checked, this host has no systemd-analyze",
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as shipped, but for where the program is."""
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.socket")):
        ours = unit.read_text().replace("/opt/reconciler/bin/reconciler", program())
        (tmp_path / unit.name).write_text(ours)
    return tmp_path


def program() -> str:
    return str(Path(sys.executable).with_name("reconciler"))


def said(*words: str | Path) -> str:
    """All that a tool has to say; it must be content."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_systemd
def test_systemd_understands_every_line(units: Path) -> None:
    """An unknown key is only a warning to it, so it must say nothing at all."""
    assert "" == said("systemd-analyze", "verify", "--man=no", *units.iterdir())


@needs_systemd
def test_the_example_drop_in_is_understood_with_everything_in_it_switched_on(units: Path) -> None:
    """Nothing is active as shipped; each line works for whoever takes its `#` away."""
    example = (UNITS / "override.conf").read_text()
    active = [line for line in example.splitlines() if line and not line.startswith("#")]
    assert ["[Service]"] == active
    switched_on = re.sub(r"^#(?=[A-Z][A-Za-z]+=)", "", example, flags=re.MULTILINE)
    assert switched_on.count("\nLoadCredential=") == 2
    place = units / "reconciler.service.d"
    place.mkdir()
    (place / "override.conf").write_text(
        switched_on.replace("/opt/reconciler/bin/reconciler", program())
    )
    assert "" == said("systemd-analyze", "verify", "--man=no", units / "reconciler.service")


@needs_systemd
def test_the_service_is_hardly_exposed(units: Path) -> None:
    """A plain unit has 9.2 of 10, systemd's own host name service 1.5."""
    unit = units / "reconciler.service"
    told = said("systemd-analyze", "security", "--offline=yes", f"--threshold={WORST}", unit)
    exposure = re.search(r"exposure level for reconciler.service: ([\d.]+)", told)
    assert exposure is not None
    assert float(exposure[1]) * 10 <= WORST


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None,
    reason="LOUD: sysusers.d is NOT checked, this host has no systemd-sysusers",
)
def test_the_account_is_static(tmp_path: Path) -> None:
    """It owns files and is a role in PostgreSQL, so its name must outlive the unit."""
    account = UNITS / "sysusers.d/reconciler.conf"
    (tmp_path / "etc").mkdir()
    said("systemd-sysusers", f"--root={tmp_path}", account)
    (line,) = [
        one
        for one in (tmp_path / "etc/passwd").read_text().splitlines()
        if one.startswith("reconciler:")
    ]
    assert "/var/lib/reconciler:/usr/sbin/nologin" == line.split(":", 5)[5]
    assert "DynamicUser" not in (UNITS / "reconciler.service").read_text()


def test_nobody_but_root_writes_the_configuration_and_nobody_else_reads_secrets() -> None:
    """tmpfiles.d(5): type, path, mode, user, group."""
    lines = (UNITS / "tmpfiles.d/reconciler.conf").read_text().splitlines()
    found = {tuple(line.split()) for line in lines if not line.startswith("#")}
    assert found == {
        ("d", "/etc/reconciler", "0750", "root", "reconciler"),
        ("d", "/etc/reconciler/conf.d", "0750", "root", "reconciler"),
        ("d", "/etc/reconciler/presets", "0750", "root", "reconciler"),
        ("d", "/etc/reconciler/destinations", "0750", "root", "reconciler"),
        ("d", "/etc/reconciler/credentials", "0750", "root", "reconciler"),
        ("d", "/var/lib/reconciler", "0700", "reconciler", "reconciler"),
    }


def test_the_service_is_told_what_a_service_for_years_needs() -> None:
    """Each of these has been forgotten by somebody, and found out at night."""
    service = said_in("reconciler.service", "Service")
    assert service.items() >= {
        ("type", "notify"),
        ("restart", "on-failure"),
        ("restartpreventexitstatus", "78"),
        ("watchdogsec", "30"),
        ("sockets", "reconciler.socket"),
        ("killmode", "mixed"),
        ("user", "reconciler"),
        ("limitcore", "0"),
    }
    assert "0" == said_in("reconciler.service", "Unit")["startlimitintervalsec"]
    assert "webhooks" == said_in("reconciler.socket", "Socket")["filedescriptorname"]


def said_in(unit: str, section: str) -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.read(UNITS / unit)
    return dict(parser[section])


def test_everything_is_in_the_wheel_where_debian_would_have_it() -> None:
    """Below the prefix as below /usr: an administrator finds it there and copies it."""
    setup = (ROOT / "setup.py").read_text()
    for file in UNITS.rglob("*"):
        if file.is_file():
            assert f'"{file.relative_to(ROOT)}"' in setup

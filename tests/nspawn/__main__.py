"""
Boots the shipped units in systemd-nspawn, as the deployment page installs them, and watches.

    python -m tests.nspawn       # as root, on Debian; needs nothing but Python

Exit codes: 0 all was seen, 1 something was not, 77 skipped because this host cannot.
"""

import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SKIPPED = 77
PYTHON = "/usr/bin/python3"  #: the host's own: no service can look into somebody's home
PACKAGES = {
    "systemd": "/lib/systemd/systemd",
    "systemd-container": "/usr/bin/systemd-nspawn",
    "postgresql": "/usr/bin/pg_createcluster",
    "python3-venv": "/usr/share/doc/python3-venv",
}
MACHINES = ("calls", "restarts")  #: what each is for: see `inside.STORIES`
WITHIN = 300  #: seconds for a machine, far more than it takes


def main() -> int:
    began = time.monotonic()
    if reason := why_not():
        tell(f"SKIPPED: the units were NOT booted: {reason}.")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="nspawn-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        opt = installed(directory)
        tell(f"installed from the wheel, {time.monotonic() - began:.0f} s")
        with concurrent.futures.ThreadPoolExecutor(len(MACHINES)) as pool:
            good = list(pool.map(lambda machine: boot(machine, directory, opt), MACHINES))
    tell(f"{'all was seen' if all(good) else 'NOT all was seen'}, {time.monotonic() - began:.0f} s")
    return 0 if all(good) else 1


def why_not() -> str | None:
    """What this host lacks; packages are installed where Debian has them."""
    release = Path("/etc/os-release")
    if not release.exists() or "ID=debian" not in release.read_text().split("\n"):
        return "this host is not Debian"
    if os.geteuid() != 0:
        return "only root can boot a machine"
    missing = [package for package, file in PACKAGES.items() if not Path(file).exists()]
    if missing:
        tell(f"installing {' '.join(missing)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", "-qq", *words], env=quiet, stdout=sys.stderr, check=False)
    missing = [package for package, file in PACKAGES.items() if not Path(file).exists()]
    if missing:
        return f"it lacks {', '.join(missing)}, and apt could not install them"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as mounted:
        try:
            mounted.enter_context(overlay(Path(name)))
        except subprocess.CalledProcessError as error:
            return f"it cannot be copied for a machine: {error.stderr.strip()}"
    return None


def installed(directory: Path) -> Path:
    """What /opt/reconciler will be, from a wheel of what is tracked here."""
    source, opt = directory / "source", directory / "opt"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False
    ).stdout.decode()
    tracked = listed.split("\0")[:-1] or [
        str(one.relative_to(REPOSITORY)) for one in REPOSITORY.rglob("*") if one.is_file()
    ]
    for file in tracked:
        if (REPOSITORY / file).is_file() and not file.startswith(("tests/", ".venv/")):
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / file, source / file)
    opt.mkdir()
    script = """
        mkdir -p /opt/reconciler && mount --bind "$1" /opt/reconciler
        "$2" -m venv /opt/reconciler
        /opt/reconciler/bin/pip install --quiet --no-warn-script-location "$3"
    """
    subprocess.run(
        ["unshare", "--mount", "sh", "-euc", script, "sh", opt, PYTHON, source],
        stdout=sys.stderr,
        check=True,
    )
    return opt


@contextlib.contextmanager
def overlay(place: Path) -> Iterator[Path]:
    """This host's own root, with everything that is written to it kept in memory."""
    place.mkdir(exist_ok=True)
    command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
    try:
        for name in ("upper", "work", "root"):
            (place / name).mkdir()
        options = f"lowerdir=/,upperdir={place / 'upper'},workdir={place / 'work'}"
        command("mount", "-t", "overlay", "-o", options, "overlay", place / "root")
        try:
            yield place / "root"
        finally:
            command("umount", place / "root")
    finally:
        command("umount", place)


def command(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def boot(machine: str, directory: Path, opt: Path) -> bool:
    """Boot one machine, which ends itself; whether its stories went well."""
    with overlay(directory / machine) as root:
        prepare(root, machine)
        log, console = root / "seen.log", directory / f"{machine}.console"
        command = [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"),
            *("--console=pipe", f"--machine=reconciler-{machine}", f"--directory={root}"),
            *(f"--bind={opt}:/opt/reconciler", "--boot", "systemd.unit=stories.target"),
        ]
        with console.open("wb") as told:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.STDOUT
            )
            try:
                follow(process, log, machine)
            finally:
                process.kill()
                process.wait()
        seen = log.read_text() if log.exists() else ""
        if seen.endswith("end: all good\n"):
            return True
        tell(f"{machine}: {console.read_text(errors='replace')[-2000:]}")
        return False


def prepare(root: Path, machine: str) -> None:
    """A machine that starts nothing of the host's, has no database yet, and tells its stories."""
    units = root / "etc/systemd/system"
    for wanted in units.glob("*.wants"):
        shutil.rmtree(wanted)
    for place in ("etc/postgresql", "var/lib/postgresql", "etc/reconciler", "var/lib/reconciler"):
        shutil.rmtree(root / place, ignore_errors=True)
    for place in ("etc/postgresql", "var/lib/postgresql"):
        (root / place).mkdir(parents=True)
        shutil.chown(root / place, "postgres", "postgres")
    (root / "etc/fstab").unlink(missing_ok=True)
    (root / "opt/reconciler").mkdir(parents=True, exist_ok=True)
    shutil.copytree(REPOSITORY / "tests/nspawn", root / "stories")
    shutil.copy(REPOSITORY / "docs/deployment.md", root / "stories")
    (units / "stories.target").write_text(
        "[Unit]\nRequires=basic.target stories.service\nAfter=basic.target\n"
    )
    (units / "stories.service").write_text(
        "[Unit]\nAfter=basic.target\nSuccessAction=exit\nFailureAction=exit\n"
        "[Service]\nType=oneshot\n"
        f"ExecStart={PYTHON} -u /stories/inside.py {machine}\n"
        "StandardOutput=file:/seen.log\nStandardError=file:/seen.log\n"
    )


def follow(process: "subprocess.Popen[bytes]", log: Path, machine: str) -> None:
    """Print what is seen, as it is seen, until the machine is off."""
    told, deadline = 0, time.monotonic() + WITHIN
    while True:
        ended = process.poll() is not None or time.monotonic() > deadline
        lines = log.read_text().splitlines() if log.exists() else []
        for line in lines[told:]:
            tell(f"{machine}: {line}")
        told = len(lines)
        if ended:
            return
        time.sleep(0.1)


def tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())

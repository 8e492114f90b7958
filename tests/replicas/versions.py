"""The version before this one, as a wheel in an environment of its own."""

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def previous(repository: Path) -> str:
    """The last revision that knew one migration less than we do: the hardest to upgrade from."""
    latest = max((ROOT / "migrations/versions").glob("[0-9]*_*.py")).name
    where = f"migrations/versions/{latest}"
    added = git(repository, "log", "--diff-filter=A", "--format=%H", "--", where).split()
    return f"{added[-1]}~1" if added else "HEAD~1"


def installed(revision: str, *, repository: Path, into: Path) -> str:
    """
    Build the wheel of *revision* and install it; return the interpreter that has it.

    What it depends on is what is installed here: its own code comes first on the path.
    """
    source, wheels, venv = into / "source", into / "wheels", into / "venv"
    source.mkdir(parents=True)
    archive = into / "source.tar"
    git(repository, "archive", "--output", str(archive), revision)
    run("tar", "-xf", str(archive), "-C", str(source))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(source))
    run(sys.executable, "-m", "venv", str(venv))
    (wheel,) = wheels.glob("*.whl")
    python = venv / "bin" / "python"
    run(str(python), "-m", "pip", "install", "-q", "--no-deps", str(wheel))
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    place = run(str(python), "-P", "-c", "import reconciler; print(reconciler.__file__)")
    assert place.startswith(str(venv)), place
    return str(python)


def git(repository: Path, *words: str) -> str:
    return run("git", "-C", str(repository), *words)


def run(*words: str) -> str:
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, f"{' '.join(words)}\n{ran.stdout}{ran.stderr}"
    return ran.stdout.strip()

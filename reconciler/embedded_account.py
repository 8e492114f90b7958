"""Whom the private PostgreSQL runs as, and whether they can reach what they need."""

import os
import pwd
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reconciler.errors import ConfigError

CHILD: Final = Path(__file__).with_name("embedded_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """PostgreSQL refuses to run as root, so root needs a way around it."""

    argument: str  #: what embedded_child is told
    uid: int  #: the owner of the server's files, as seen from outside
    gid: int
    peer_checked: bool = False  #: others could be the same user: check who connects

    @property
    def drops(self) -> bool:
        """Whether the server is another user than we are."""
        return self.argument.startswith("user:")

    def command(self, program: Sequence[str | Path]) -> list[str]:
        """The command line that runs *program* under this account, ending when we end."""
        python = [sys.executable, "-I", "-S", str(CHILD)]
        return [*python, str(os.getpid()), self.argument, *map(str, program)]

    def own(self, directory: Path) -> Path:
        """Make *directory* if need be, 0700, and theirs with all that is in it; return it."""
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.stat().st_uid != self.uid and os.geteuid() == 0:
            for parent, _, files in os.walk(directory):
                for path in (parent, *(os.path.join(parent, name) for name in files)):  # noqa: PTH118
                    os.chown(path, self.uid, self.gid, follow_symlinks=False)
        return directory


def account_for(state: Path) -> Account:
    """
    Whom the server under *state* runs as.

    An ordinary user: as themselves. Root, where the directory belongs to an ordinary user: as
    that user, whose files it stays. Root else: in a user namespace where it is somebody and its
    files stay root's; where namespaces are refused, as `nobody`.
    """
    uid, gid = os.geteuid(), os.getegid()
    owner = state.stat()
    nobody = somebody()
    namespace = Account(argument=f"namespace:{nobody.pw_uid}:{uid}:{gid}", uid=uid, gid=gid)
    if uid == 0 and owner.st_uid != 0:
        argument = f"user:{owner.st_uid}:{owner.st_gid}"
        return Account(argument=argument, uid=owner.st_uid, gid=owner.st_gid)
    if uid != 0 and is_known(uid):
        return Account(argument="same", uid=uid, gid=gid)
    if is_allowed(namespace):
        return namespace
    if uid != 0:
        raise ConfigError(
            f"user id {uid} has no name, and PostgreSQL does not start without one",
            hint="give the user an entry in /etc/passwd, or set database.url",
        )
    return Account(
        argument=f"user:{nobody.pw_uid}:{nobody.pw_gid}",
        uid=nobody.pw_uid,
        gid=nobody.pw_gid,
        peer_checked=True,
    )


def somebody() -> pwd.struct_passwd:
    """The user `nobody`, or else any that is not root."""
    others = [user for user in pwd.getpwall() if user.pw_uid != 0]
    return next((user for user in others if user.pw_name == "nobody"), others[-1])


def is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def is_allowed(account: Account) -> bool:
    """Whether this system lets us run anything under *account*."""
    probe = account.command([sys.executable, "-I", "-S", "-c", ""])
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0  # noqa: S603


def can_reach(account: Account, path: Path) -> bool:
    """Whether *account* may pass every directory above *path* (access lists are not looked at)."""
    for directory in path.resolve().parents:
        status = directory.stat()
        if status.st_uid == account.uid:
            allowed = status.st_mode & 0o100
        elif status.st_gid == account.gid:
            allowed = status.st_mode & 0o010
        else:
            allowed = status.st_mode & 0o001
        if not allowed:
            return False
    return True

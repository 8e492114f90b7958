"""
Becomes the private PostgreSQL: runs alone, gives up root, asks to end with its parent, execs.

Run by path with `python -I -S`, so it may import nothing but the standard library. A process of
its own, not a `preexec_fn`: that would run Python between fork and exec of a threaded process.

Arguments: the parent's process id, the account (`same`, `namespace:INSIDE:UID:GID` or
`user:UID:GID`), the command.
"""

import ctypes
import os
import signal
import sys

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1


def main(parent: int, account: str, command: list[str]) -> None:
    kind, *numbers = account.split(":")
    match kind, [int(number) for number in numbers]:
        case "namespace", [inside, uid, gid]:
            enter_namespace(inside=inside, uid=uid, gid=gid)
        case "user", [uid, gid]:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
    if sys.platform == "linux":  # after the change of user, which would forget it
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent ended first")
    os.execv(command[0], command)  # noqa: S606


def enter_namespace(*, inside: int, uid: int, gid: int) -> None:
    """Be *inside* in here, and *uid*, *gid* to everybody else and to the file system."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        sys.exit(f"no user namespace: {os.strerror(ctypes.get_errno())}")
    for name, line in (
        ("setgroups", "deny"),
        ("gid_map", f"{inside} {gid} 1"),
        ("uid_map", f"{inside} {uid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(line)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])

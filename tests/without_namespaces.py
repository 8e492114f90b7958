"""Runs a command as root where no user namespace can be made, as in most containers."""

import ctypes
import os
import sys
from pathlib import Path


def main(command: list[str]) -> None:
    everybody = f"0 0 {2**32 - 1}"
    ready, told = os.pipe(), os.pipe()
    parent = os.getpid()
    if os.fork() == 0:  # the helper, still outside, says who is who inside
        os.read(ready[0], 1)
        Path(f"/proc/{parent}/uid_map").write_text(everybody)
        Path(f"/proc/{parent}/gid_map").write_text(everybody)
        os.write(told[1], b".")
        os._exit(0)
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0:
        sys.exit("there are no user namespaces here as it is")
    os.write(ready[1], b".")
    os.read(told[0], 1)
    os.wait()
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])

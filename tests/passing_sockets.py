"""Becomes another program, with sockets passed as a service manager does: sd_listen_fds(3)."""

import os
import sys

START = 3  #: SD_LISTEN_FDS_START


def main(descriptors: str, names: str, *command: str) -> None:
    """*descriptors* are ours, with commas; *names* with colons, or empty for none."""
    given = [int(one) for one in descriptors.split(",")]
    high = [os.dup(one) for one in given]
    while min(high) < START + len(high):
        high.append(os.dup(high.pop(0)))
    for number, one in enumerate(high):
        os.dup2(one, START + number)  # inheritable
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(high))}
    if names:
        os.environ["LISTEN_FDNAMES"] = names
    os.execv(command[0], command)  # noqa: S606 - the very point


if __name__ == "__main__":
    main(*sys.argv[1:])

"""
A process that has imported the product and forks daemons: a fifth of what a start costs.

Run as a script, so that nothing but PYTHONPATH and the installed packages is on its path. Each
line of standard input starts a process that does what `python -m reconciler ARGUMENTS` does; it
is told when one ends. A request with `cold` makes the child replace itself by a new interpreter.
"""

import gc
import importlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

children: set[int] = set()


def main() -> None:
    import reconciler.cli
    import reconciler.daemon
    import reconciler.faults

    assert reconciler.cli
    assert reconciler.daemon
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(awake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    gc.freeze()
    waiting = b""
    while True:
        ready, _, _ = select.select([0, awake], [], [])
        if awake in ready:
            os.read(awake, 1024)
            tell_who_ended()
        if 0 in ready:
            said = os.read(0, 65536)
            if not said:
                break
            *lines, waiting = (waiting + said).split(b"\n")
            for line in lines:
                start(json.loads(line), close=(awake, wake))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def tell_who_ended() -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        children.discard(pid)
        say(pid=pid, code=os.waitstatus_to_exitcode(status))


def start(wanted: dict[str, Any], *, close: tuple[int, ...]) -> None:
    pid = os.fork()
    if pid:
        children.add(pid)
        say(number=wanted["number"], pid=pid)
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in close:
        os.close(descriptor)
    become(wanted)


def become(wanted: dict[str, Any]) -> NoReturn:
    """Be the process that was asked for."""
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir(wanted["cwd"])
    if wanted["cold"]:
        words = [sys.executable, "-m", "reconciler", *wanted["argv"]]
        os.execve(sys.executable, words, wanted["env"])  # noqa: S606
    os.environ.clear()
    os.environ.update(wanted["env"])
    sys.argv = ["reconciler", *wanted["argv"]]
    code = 1
    try:
        import reconciler.cli
        import reconciler.faults

        importlib.reload(reconciler.faults)  # it reads the environment when it is loaded
        reconciler.cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    finally:
        sys.stderr.flush()
        os._exit(code)


def say(**facts: int) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())


if __name__ == "__main__":
    assert Path(__file__).parent.as_posix() not in sys.path, "start it with -P"
    main()

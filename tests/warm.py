"""
A process that has imported the product and forks daemons: a fifth of what a start costs.

Run as a script, so that nothing but PYTHONPATH and the installed packages is on its path. Each
line of standard input starts a process that does what `python -m reconciler ARGUMENTS` does; it
is told when one ends. A request with `cold` makes the child replace itself by a new interpreter.
With the path of a socket as its argument it takes such lines from everybody who connects to it,
until its standard input is closed.
"""

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

children: set[int] = set()


def main() -> None:
    import reconciler

    for module in pkgutil.walk_packages(reconciler.__path__, "reconciler."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()
    if len(sys.argv) > 1:
        answer_calls(sys.argv[1])
    else:
        take_orders()


def answer_calls(path: str) -> None:
    """Fork one that takes orders for each who connects."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen()
        Path(path + ".new").rename(path)  # whoever sees it can connect
        while listener in select.select([0, listener], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    os.dup2(connection.fileno(), 0)
                    os.dup2(connection.fileno(), 1)
                    connection.close()
                    take_orders()
                    os._exit(0)


def take_orders() -> None:
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(awake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
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
    kept = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(wanted.get("input", os.devnull), os.O_RDONLY), 0)
    os.dup2(os.open(wanted.get("output", os.devnull), kept, 0o600), 1)
    os.dup2(os.open(wanted["log"], kept, 0o600), 2)
    os.chdir(wanted["cwd"])
    if wanted["cold"]:
        words = [sys.executable, "-m", "reconciler", *wanted["argv"]]
        os.execve(sys.executable, words, wanted["env"])  # noqa: S606
    os.environ.clear()
    os.environ.update(wanted["env"])
    sys.argv = ["reconciler", *wanted["argv"]]
    sys.path[:0] = [wanted["cwd"], *wanted["env"].get("PYTHONPATH", "").split(os.pathsep)]
    code = 1
    try:
        import reconciler.cli
        import reconciler.faults

        importlib.reload(reconciler.faults)  # it reads the environment when it is loaded
        reconciler.cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:  # noqa: BLE001  # as an interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def say(**facts: int) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())


if __name__ == "__main__":
    assert Path(__file__).parent.as_posix() not in sys.path, "start it with -P"
    main()

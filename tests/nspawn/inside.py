"""The stories that a booted machine tells: run by its stories.service, never by a host."""

import filecmp
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from house import (
    CONFIG,
    CONFIGURATION,
    DROP_IN,
    SECRETS,
    WATCHDOG,
    WEBHOOKS,
    Destination,
    Load,
    asked,
    deliver,
    drop_in,
    eventually,
    journal,
    run,
    show,
    sql,
)

UNITS = Path("/opt/reconciler/lib/systemd/system")
PAGE = Path("/stories/deployment.md")
destination = Destination()


def install() -> str:
    """By the very commands of the deployment page, from the account on."""
    version = max(Path("/usr/lib/postgresql").iterdir(), key=lambda one: int(one.name)).name
    run("pg_createcluster", version, "main")  # as `apt install` does
    run("systemctl", "start", f"postgresql@{version}-main.service")
    run("sh", "-euc", documented("systemd-sysusers"))
    CONFIG.write_text(CONFIGURATION)
    SECRETS.write_text("the first secret\n")
    run("chgrp", "reconciler", str(SECRETS))
    SECRETS.chmod(0o640)
    drop_in("override", f"LoadCredential=shop-secret:{SECRETS}", f"WatchdogSec={WATCHDOG}")
    run("sh", "-euc", documented("chmod 755"))
    migrate, enable = documented("enable --now").splitlines()
    run("sh", "-euc", migrate)
    run("sh", "-euc", enable.replace(" --now", ""))  # starting it is the next story
    account = run("getent", "passwd", "reconciler")
    stat = run("stat", "--format=%A %U:%G %n", "/etc/reconciler", "/var/lib/reconciler")
    database = json.loads(run("/usr/local/sbin/reconciler", "status", "--json"))["database"]
    return (
        f"{account}; {stat.replace(chr(10), '; ')}; PostgreSQL"
        f" {database['server_version']} by peer authentication, at {database['migration']}"
    )


def documented(word: str) -> str:
    """The block of commands with *word* in it."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if word in block]
    return str(found)


def start() -> str:
    """READY only when it serves: nobody sees it active before it answers."""
    run("systemctl", "start", "--no-block", "reconciler")
    before = 0
    began = time.monotonic()
    while True:
        (state,) = show("ActiveState")  # first the state, then the answer
        answer = asked("/livez")
        if state == "active":
            assert "ok" == answer, "active before it served"
            break
        assert state in {"inactive", "activating"}, journal()
        before += not answer
        assert time.monotonic() - began < 60, journal()
    assert before, "nobody looked in time"
    took = time.monotonic() - began
    for name in ("service", "socket"):
        unit = f"reconciler.{name}"
        assert filecmp.cmp(UNITS / unit, Path("/etc/systemd/system") / unit, shallow=False)
    eventually(lambda: show("StatusText")[0].startswith("serving"))
    assert f"http://127.0.0.1:{WEBHOOKS}" in journal("--grep=daemon.ready")
    status, watchdog = show("StatusText", "WatchdogUSec")
    return f'active after {took:.1f} s, {before} looks before; "{status}"; watchdog {watchdog}'


def webhook() -> str:
    """A signed webhook is applied, a badly signed one is not, and the effect is delivered."""
    assert (200, "applied") == outcome("paid-1", paid=True)
    assert 401 == deliver("forged", secret="guessed")[0]  # noqa: S106 - a guess
    row = sql("select sender, key, version, state->>'paid' from reconciler.resources")
    assert "shop|paid-1|1|true" == row
    eventually(lambda: "paid-1" in destination.answered)
    eventually(lambda: sql("select state from reconciler.outbox") == "delivered")
    return f"row {row}; called for {destination.answered}; the forged one 401"


def outcome(key: str, *, paid: bool = False) -> tuple[int, str]:
    status, told = deliver(key, paid=paid)
    return status, str(told.get("outcome"))


def credentials() -> str:
    """The service has a copy of its secret: a new value counts from the next start on."""
    (pid,) = show("MainPID")
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (directory,) = [one for one in environ if one.startswith(b"CREDENTIALS_DIRECTORY=")]
    SECRETS.write_text("the second secret\n")
    assert 401 == deliver("rotated-1")[0]
    assert 200 == deliver("rotated-1", secret="the first secret")[0]  # noqa: S106
    run("systemctl", "restart", "reconciler")
    assert (200, "applied") == outcome("rotated-2")
    assert 401 == deliver("rotated-3", secret="the first secret")[0]  # noqa: S106
    return f"{directory.decode()}; the old secret until the restart, the new one after"


def slow_call() -> str:
    """A call that takes 25 s stops nobody: the loops go on, and so do the life signs."""
    (pid, restarts) = show("MainPID", "NRestarts")
    began = time.monotonic()
    outcome("slow-1", paid=True)
    eventually(lambda: "slow-1" in destination.begun)
    assert (200, "applied") == outcome("beside-the-slow-one")
    eventually(lambda: "slow-1" in destination.answered)
    took = time.monotonic() - began
    delivered = "select state from reconciler.outbox where key = 'slow-1'"
    eventually(lambda: sql(delivered) == "delivered")
    assert [pid, restarts] == show("MainPID", "NRestarts")
    assert ["slow-1"] == [one for one in destination.begun if one == "slow-1"]
    assert took >= destination.slow
    return f"{took:.1f} s under a watchdog of {WATCHDOG} s: pid {pid} still, {restarts} restarts"


def clean_stop() -> str:
    """SIGTERM while idle connections are open: exit 0, no core, nothing ugly in the journal."""
    began = time.monotonic()
    run("systemctl", "stop", "reconciler")
    took = time.monotonic() - began
    found = show("ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
    assert ["inactive", "success", "1", "0"] == found, f"{found}\n{journal('-n20')}"
    log = journal()
    assert "daemon.stopped" in log
    assert "Traceback" not in log, log
    assert not cores(), cores()
    return f"{took:.1f} s, exit {found[3]}, {found[1]}; no core; no traceback in {len(log)} bytes"


def cores() -> list[Path]:
    return [core for place in ("/", "/var/lib/reconciler") for core in Path(place).glob("core*")]


def broken() -> str:
    """
    A configuration that cannot be used is not tried again by itself. Webhooks that wait do start
    the service, but not without a pause; and once it is mended they are answered.
    """
    wrong = CONFIG.parent / "conf.d/wrong.toml"
    wrong.write_text("[server]\nlisen = 1\n")
    run("systemctl", "start", "reconciler", check=False)
    time.sleep(3)
    found = show("ActiveState", "Result", "ExecMainStatus", "NRestarts")
    assert ["failed", "exit-code", "78", "0"] == found, found
    assert 1 == len(tries()), journal()
    with Load(1) as load:
        eventually(lambda: len(tries()) >= 3)
        wrong.unlink()
        eventually(lambda: load.answers)
    _, first, second, *_ = tries()  # with traffic, from here on
    pause = second - first
    assert pause >= 2, pause
    assert {"200"} == {told for told, _ in load.answers}
    return (
        f"exit {found[2]}, {found[3]} restarts; with traffic a try every {pause:.1f} s; mended, 200"
    )


def tries() -> list[float]:
    """When each try said what is wrong, in seconds of the machine's monotonic clock."""
    told = journal("--output=short-monotonic").splitlines()
    found = [line for line in told if "server.lisen: unknown key" in line]
    return [float(line.strip("[ ").partition("]")[0]) for line in found]


def kept_socket() -> str:
    """Senders never pause while the service is restarted: each of them is answered with 200."""
    pids = set()
    with Load(8) as load:
        for _ in range(3):
            pids |= set(show("MainPID"))
            enough = len(load.answers) + 100
            eventually(lambda enough=enough: len(load.answers) > enough)
            run("systemctl", "restart", "reconciler")
        enough = len(load.answers) + 100
        eventually(lambda: len(load.answers) > enough)
    told = {told for told, _ in load.answers}
    assert {"200"} == told, told
    ours = "select count(*) from reconciler.processed_events where event_id like 'evt-load-%'"
    assert len(load.answers) == int(sql(ours))
    longest = max(seconds for _, seconds in load.answers)
    assert 3 == len(pids)
    return (
        f"3 restarts, {len(load.answers)} deliveries, none refused, all answered 200 and in the"
        f" database; the longest took {longest:.1f} s"
    )


def crash() -> str:
    """kill -9 under load: started again, and who waits in the socket's queue is served."""
    (pid,) = show("MainPID")
    run("systemctl", "kill", "--signal=SIGKILL", "--kill-whom=main", "reconciler")
    assert (200, "applied") == outcome("after-the-crash")
    eventually(lambda: show("ActiveState") == ["active"])
    (now,) = show("MainPID")
    assert now != pid
    result = journal("--grep=code=killed")
    assert "status=9/KILL" in result
    return f"pid {pid} killed, pid {now} answered the next webhook; {result.splitlines()[-1]}"


def frozen_loop() -> str:
    """The relay stands still while all else goes on: the watchdog ends that, and calls go out."""
    drop_in("hang", "Environment=RECONCILER_TEST_HANG_AT=relay:12")
    run("systemctl", "restart", "reconciler")
    (pid, before) = show("MainPID", "NRestarts")
    began = time.monotonic()
    eventually(lambda: "stalled: relay" in show("StatusText")[0])
    stalled = time.monotonic() - began
    assert "stalled: relay" in journal("--grep=daemon.stalled")
    status, told = deliver("while-frozen", paid=True)
    assert 200 == status, told  # all else goes on
    assert "while-frozen" not in destination.begun
    (DROP_IN / "hang.conf").unlink()
    run("systemctl", "daemon-reload")
    eventually(lambda: show("MainPID")[0] not in {pid, "0"} and show("ActiveState") == ["active"])
    took = time.monotonic() - began
    killed = journal("--grep=Watchdog timeout").splitlines()[-1]
    eventually(lambda: "while-frozen" in destination.answered)
    (after,) = show("NRestarts")
    assert not cores(), cores()
    return (
        f"stalled after {stalled:.0f} s, restarted after {took:.0f} s (NRestarts {before} to"
        f' {after}); "{killed}"; what was asked for meanwhile has been called'
    )


STORIES: dict[str, list[Callable[[], str]]] = {
    "calls": [
        install,
        start,
        webhook,
        slow_call,
        credentials,
        clean_stop,
        broken,
    ],
    "restarts": [install, start, kept_socket, crash, frozen_loop, clean_stop],
}


def main(machine: str) -> None:
    os.chdir("/")
    for story in STORIES[machine]:
        began = time.monotonic()
        try:
            seen = story()
        except Exception:  # noqa: BLE001 - whatever it is, it is the story's end
            tell(f"NOT SEEN {story.__name__}\n{traceback.format_exc()}{journal('-n60')}")
            sys.exit(1)
        tell(f"seen {story.__name__} ({time.monotonic() - began:.1f} s): {seen}")
    tell("end: all good")


def tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - into the log that the host follows


if __name__ == "__main__":
    main(sys.argv[1])

"""Where daemons come from: our side of `warm.py`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

WARM = Path(__file__).with_name("warm.py")

at_hand: Callable[[], Path] | None = None
"""Where the shared one is, in the suite; what is proved by hand starts interpreters of its own."""


class Child:
    """One process of the nursery's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return None if self.is_running else self.ended.result()

    def send_signal(self, which: signal.Signals) -> None:
        """Nothing, where it has ended; its end may not have been told yet."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code; negative where a signal has ended it."""
        return await asyncio.shield(self.ended)


class Nursery:
    """Starts `reconciler` processes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, cold: bool = False
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._cold = cold
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}

    async def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        **streams: Path,
    ) -> Child:
        """*streams*: `input` and `output`, files in the place of /dev/null."""
        os.close(os.open(log, os.O_WRONLY | os.O_CREAT))
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        wanted = {"number": number, "argv": list(argv), "env": dict(env), "cwd": str(cwd)}
        wanted |= {name: str(file) for name, file in streams.items()}
        line = json.dumps({**wanted, "log": str(log), "cold": self._cold})
        self._writer.write(line.encode() + b"\n")
        return await answer

    async def listen(self) -> None:
        async for line in self._reader:
            told = json.loads(line)
            if "number" in told:
                child = self._children[told["pid"]] = Child(told["pid"])
                self._asked.pop(told["number"]).set_result(child)
            else:
                self._children.pop(told["pid"]).ended.set_result(told["code"])


@asynccontextmanager
async def nursery(*, packages: Path | None, cold: bool) -> AsyncIterator[Nursery]:
    """*packages*: where a copy of the product lies that is to run instead of the installed one."""
    clean = {name: v for name, v in os.environ.items() if not name.startswith("RECONCILER_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(WARM)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**clean, **({"PYTHONPATH": str(packages)} if packages else {})},
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    found = Nursery(process.stdout, process.stdin, cold=cold)
    listening = asyncio.create_task(found.listen())
    try:
        yield found
    finally:
        process.stdin.close()
        await process.wait()
        listening.cancel()


@contextmanager
def shared() -> Iterator[Path]:
    """One for all tests of a session: the socket that `calling` connects to."""
    clean = {name: v for name, v in os.environ.items() if not name.startswith("RECONCILER_")}
    with tempfile.TemporaryDirectory(prefix="nursery-") as name:
        path = Path(name) / "socket"
        words = [sys.executable, "-P", str(WARM), str(path)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, env=clean, cwd="/") as process:
            try:
                while not path.exists():
                    assert process.poll() is None
                    time.sleep(0.02)
                yield path
            finally:
                assert process.stdin is not None
                process.stdin.close()


async def spawned(
    argv: Sequence[str],
    *,
    at: Path,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    **streams: Path,
) -> Child:
    """A process of the shared nursery's *at* a socket; it is killed where our loop ends first."""
    reader, writer = await asyncio.open_unix_connection(at)
    nursery = Nursery(reader, writer)
    listening = asyncio.create_task(nursery.listen())
    child = await nursery.start(argv, env=env, cwd=cwd, log=log, **streams)

    def hang_up(_: object) -> None:
        writer.close()
        listening.cancel()

    child.ended.add_done_callback(hang_up)
    return child

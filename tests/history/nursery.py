"""Where daemons come from: our side of `warm.py`."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

WARM = Path(__file__).with_name("warm.py")


class Child:
    """One process of the nursery's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    def send_signal(self, which: signal.Signals) -> None:
        """Nothing, where it has ended; its end may not have been told yet."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)

    async def wait(self) -> int:
        """Its exit code; negative where a signal has ended it."""
        return await asyncio.shield(self.ended)


class Nursery:
    """Starts `reconciler` processes."""

    def __init__(self, process: asyncio.subprocess.Process, *, cold: bool) -> None:
        self._process = process
        self._cold = cold
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> Child:
        os.close(os.open(log, os.O_WRONLY | os.O_CREAT))
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        wanted = {"number": number, "argv": list(argv), "env": dict(env), "cwd": str(cwd)}
        line = json.dumps({**wanted, "log": str(log), "cold": self._cold})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await answer

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
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
    found = Nursery(process, cold=cold)
    listening = asyncio.create_task(found.listen())
    try:
        yield found
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        listening.cancel()

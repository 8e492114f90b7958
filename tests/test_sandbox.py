"""The sandbox does what its page says: the blocks of docs/sandbox.md, one after the other."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.test_docs import FENCED, ROOT, page
from tests.world import eventually

pytestmark = pytest.mark.anyio

PORTS = {"9100": "shop", "9101": "payments"}


class Terminal:
    """A directory, and a `reconciler` on the path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        command = directory / "bin" / "reconciler"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m reconciler "$@"\n')
        command.chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if "RECONCILER" not in name}
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        here = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": paths}
        self.environment = {**clean, **here, "no_proxy": "*"}

    async def run(self, script: str) -> tuple[int, str]:
        bash = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", script.replace("curl", "curl -fsS")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.directory,
            env=self.environment,
        )
        out, _ = await bash.communicate()
        assert bash.returncode is not None
        return bash.returncode, out.decode()

    @asynccontextmanager
    async def running(self, line: str) -> AsyncIterator[Path]:
        """A process in the background, until Ctrl-C; it must end with 0."""
        log = self.directory / f"{line.split()[1]}.log"
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(
                *line.split(), stdout=file, stderr=file, cwd=self.directory, env=self.environment
            )
        try:
            yield log
        finally:
            process.send_signal(signal.SIGINT)
            code = await asyncio.wait_for(process.wait(), 40)
        assert 0 == code, log.read_text()


@pytest.mark.timeout(300)
async def test_the_page_of_the_sandbox_is_true(tmp_path: Path):
    """
    Each block is run as it stands, but on free ports; one that looks is run until it shows what
    stands below it.
    """
    terminal = Terminal(tmp_path)
    found = FENCED.findall(page("sandbox.md"))
    (start,) = [body.strip() for kind, body in found if kind == "sh sandbox"]
    (serve,) = [body.strip() for kind, body in found if kind == "sh serve"]
    async with terminal.running(f"{start} --first-port 0") as said:

        async def told() -> bool:
            return "Ctrl-C" in written(said)

        await eventually(told)
        kept = json.loads((tmp_path / "reconciler-sandbox" / "sandbox.json").read_text())
        ports = {shown: str(kept["ports"][name]) for shown, name in PORTS.items()}
        async with terminal.running(serve) as log:
            await eventually(lambda: baseline_over(terminal, log), within=60)
            for (kind, body), (_, following) in zip(found, [*found[1:], ("", "")], strict=True):
                await block(terminal, kind, ported(body, ports), following.splitlines())


async def block(terminal: Terminal, kind: str, script: str, expected: list[str]) -> None:
    if kind == "sh":
        code, out = await terminal.run(script)
        assert 0 == code, out
    if kind == "sh look":
        assert expected

        async def shows() -> bool:
            _, out = await terminal.run(script)
            return all(line in out for line in expected)

        await eventually(shows, within=60)


async def baseline_over(terminal: Terminal, log: Path) -> bool:
    """The first full scan is through: what happens now is news."""
    if "daemon.ready" not in written(log):
        return False
    _, out = await terminal.run(
        "reconciler status --json --config reconciler-sandbox/reconciler.toml"
    )
    return '"baseline_completed_at":"2' in re.sub(r": +", ":", out)


def written(file: Path) -> str:
    return file.read_text()


def ported(text: str, ports: dict[str, str]) -> str:
    for shown, port in ports.items():
        text = text.replace(f":{shown}", f":{port}")
    return text


async def test_a_sandbox_goes_on_from_where_it_was(tmp_path: Path):
    """Orders, what was sent, ports and the configuration that was changed outlive a restart."""
    terminal = Terminal(tmp_path)
    start = "reconciler sandbox --directory box --first-port 0 --seed 7 --json"
    shown = []
    for turn in range(2):
        async with terminal.running(start) as said:

            async def told(said: Path = said) -> bool:
                return written(said).endswith("\n")

            await eventually(told)
            facts = json.loads(said.read_text())
            shown.append(facts)
            for script in (
                f"curl {facts['shop']}/happen -d '{{\"events\": 5}}'",
                f"curl -X DELETE {facts['shop']}/orders/ord_{turn + 1}",
            ):
                code, out = await terminal.run(script)
                assert 0 == code, out
            code, out = await terminal.run(f"curl {facts['shop']}/webhooks")
            assert 6 * (turn + 1) == len(json.loads(out)["pending"]), "nobody has taken them"
        config = tmp_path / "box" / "reconciler.toml"
        config.write_text(config.read_text() + "# mine\n")
    assert shown[0] == shown[1]
    assert 2 == config.read_text().count("# mine")

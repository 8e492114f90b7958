"""The peers: which version of each, and where it is installed when it is needed."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WORKERS = Path(__file__).parent / "workers"
FROM_PYPI = ("procrastinate==3.10.0", "pgqueuer[asyncpg]==1.6.0", "aiohttp==3.14.5")
FROM_NPM = ("graphile-worker@0.18.0", "pg-boss@12.38.0", "undici@7.30.2")
PLACE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "reconciler-bench-relay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to work off a backlog."""

    name: str
    settings: str  #: in words, beside the concurrency
    script: str
    kind: str  #: ours, python or node
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, place: Path) -> Sequence[str]:
        """The command, but for what it is to do."""
        match self.kind:
            case "ours":
                return (sys.executable, str(WORKERS / self.script))
            case "python":
                return (str(place / "venv/bin/python"), str(WORKERS / self.script))
            case _:
                # packages are looked for beside the script, so it is copied to where they are
                return ("node", str(place / "node" / self.script))


CONTENDERS = (
    Contender(
        name="ours",
        settings="serve --role relay, default configuration",
        script="ours.py",
        kind="ours",
    ),
    Contender(
        name="procrastinate",
        settings="PsycopgConnector, run_worker_async, RetryStrategy(12, exponential), aiohttp",
        script="procrastinate_worker.py",
        kind="python",
    ),
    Contender(
        name="pgqueuer",
        settings="asyncpg, run(batch_size=concurrency), aiohttp",
        script="pgqueuer_worker.py",
        kind="python",
    ),
    Contender(
        name="graphile-worker",
        settings="run(), default configuration, undici",
        script="graphile_worker.mjs",
        kind="node",
    ),
    Contender(
        name="graphile-worker tuned",
        settings="localQueue 500, complete and fail in batches, undici",
        script="graphile_worker.mjs",
        kind="node",
        environment={"VARIANT": "tuned"},
    ),
    Contender(
        name="pg-boss",
        settings="work(batchSize=concurrency, burstWhenBatchFull), notify, retryLimit 12, undici",
        script="pg_boss.mjs",
        kind="node",
    ),
)


def installed(place: Path, wanted: Sequence[Contender]) -> None:
    """Fetch what is not there yet, each from its registry by its own client."""
    kinds = {one.kind for one in wanted}
    venv, node = place / "venv", place / "node"
    if "python" in kinds and not is_there(venv, FROM_PYPI):
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", *FROM_PYPI], check=True)
        note(venv, FROM_PYPI)
    if "node" in kinds:
        node.mkdir(parents=True, exist_ok=True)
        if not is_there(node, FROM_NPM):
            options = ("--silent", "--no-audit", "--no-fund", "--prefix", str(node))
            subprocess.run(["npm", "install", *options, *FROM_NPM], check=True)
            note(node, FROM_NPM)
        for script in WORKERS.glob("*.mjs"):
            (node / script.name).write_text(script.read_text())


def is_there(place: Path, wanted: Sequence[str]) -> bool:
    file = place / "installed.json"
    return file.exists() and json.loads(file.read_text()) == list(wanted)


def note(place: Path, wanted: Sequence[str]) -> None:
    (place / "installed.json").write_text(json.dumps(wanted))

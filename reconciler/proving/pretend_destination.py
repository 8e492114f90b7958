"""A pretend payment provider: honours idempotency keys, and loses answers."""

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import click

from reconciler.proving.history import History
from reconciler.proving.misbehaving_http import Answer, Request, listen


class Destination:
    """What the provider holds: the answers it gave, by key. Nothing happens twice for one key."""

    def __init__(self, *, seed: int, history: History, loses: float) -> None:
        self.fate = random.Random(f"destination {seed}")  # noqa: S311 - a seed, not a secret
        self.history = history
        self.loses = loses
        self.answers: dict[str, dict[str, Any]] = {}

    async def answer(self, request: Request) -> Answer:
        """Perform the call once per key; then, sometimes, lose the answer or be busy."""
        key = request.headers.get("idempotency-key", "")
        self.history.write("call", path=request.path, key=key)
        trouble = self.fate.random()
        if trouble < self.loses / 3:
            return Answer(status=503, body={"error": "busy"})
        if key not in self.answers:
            self.answers[key] = {"id": f"op_{len(self.answers) + 1}"}
            self.history.write(
                "effect", path=request.path, key=key, reference=request.json()["reference"]
            )
        return Answer(body=self.answers[key], lost=trouble < self.loses)


async def run(*, seed: int, history: Path, loses: float, port: int) -> None:
    destination = Destination(seed=seed, history=History(history), loses=loses)
    listener = await listen(destination.answer, port=port)
    sys.stdout.write(listener.url + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


@click.command()
@click.option("--seed", type=int, required=True)
@click.option("--history", type=click.Path(path_type=Path), required=True)
@click.option("--loses", type=float, default=0.2, help="Share of calls that meet trouble.")
@click.option("--port", type=int, default=0)
def main(*, seed: int, history: Path, loses: float, port: int) -> None:
    """Run the pretend destination until it is ended; its first line is its address."""
    asyncio.run(run(seed=seed, history=history, loses=loses, port=port))


if __name__ == "__main__":
    main()

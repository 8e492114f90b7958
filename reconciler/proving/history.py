"""An append-only history of what a pretend world did: the only witness that a demo believes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


class History:
    """JSON lines, flushed one by one, so that a killed process leaves a true history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at": round(time.time(), 3), **facts})
        self._file.write(line + "\n")
        self._file.flush()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every complete line of a history; a last one cut off by a kill is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)

"""What a daemon remembers of its database outside of it: a small file in the state directory."""

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog

from reconciler.generation import Remembered

log = structlog.get_logger()

SLOTS: Final = 16  #: daemons that may share one state directory
KEPT: Final = 32  #: databases that one file remembers, the latest


class Memory:
    """
    A file of our own among those of the daemons that share a state directory.

    Without a directory, or where it cannot be written, nothing outlives the process: then what
    is remembered is what this process has seen itself.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file: Path | None = None
        self._lock: int | None = None
        if directory is None:
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._take_slot(directory)
        except OSError as error:
            log.warning("generation.memory_failed", error=str(error))

    def recall(self, database: str) -> Remembered | None:
        """What was kept of *database*; None if nothing was, or it cannot be read."""
        found = self._read().get(database)
        try:
            return None if found is None else Remembered(**{**found, "mark": UUID(found["mark"])})
        except (TypeError, ValueError, KeyError) as error:
            log.warning("generation.memory_unreadable", error=str(error))
            return None

    def keep(self, database: str, remembered: Remembered) -> None:
        """Write down what is remembered of *database*; a failure is told and does no harm."""
        if self._file is None:
            return
        known = self._read()
        known.pop(database, None)
        known[database] = {**asdict(remembered), "mark": str(remembered.mark)}
        latest = dict(list(known.items())[-KEPT:])
        draft = self._file.with_suffix(".new")
        try:
            with draft.open("w") as file:
                json.dump(latest, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._file)
        except OSError as error:
            log.warning("generation.memory_failed", error=str(error))

    def close(self) -> None:
        """Let another daemon have the slot."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_slot(self, directory: Path) -> None:
        for number in range(SLOTS):
            lock = os.open(directory / f"generation-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._lock, self._file = lock, directory / f"generation-{number}.json"
            return
        log.warning(
            "generation.memory_failed", error=f"{SLOTS} daemons share {directory}: no place is left"
        )

    def _read(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError) as error:
            log.warning("generation.memory_unreadable", error=str(error))
            return {}
        return found if isinstance(found, dict) else {}

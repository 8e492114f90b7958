"""
One expression changed, one promise broken, and the story that notices.

    python -m tests.mutants          every promise, two at a time
    python -m tests.mutants P1 P9    some of them

Each mutation is made in a copy of the packages. There it has to pass mypy, and its promise's own
story has to fail by an assertion: not by an error, an import or a time that ran out.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.clusters import a_cluster
from tests.verdicts import assertion

ROOT = Path(__file__).parent.parent
AT_ONCE = 2
COPIED = ("reconciler", "outbox", "migrations", "config", "docs", "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change that breaks a promise."""

    promise: str
    file: str
    before: str
    after: str
    story: str

    def places(self) -> int:
        """How often what it changes stands there: once, or else the file has changed."""
        package, _, module = self.file.partition("/")
        return (place_of(package) / module).read_text().count(self.before)


CLAIM = Mutant(
    promise="P1",
    file="reconciler/ledger/claiming.py",
    before="taken = await claims.claim(connection, [wanted[id_].claim for id_ in sorted(wanted)])",
    after="taken = set(wanted)",
    story="tests/stories/test_p01_claim.py",
)
GUARD = Mutant(
    promise="P4",
    file="reconciler/ledger/guard.py",
    before="if held.version is None or seen.version > held.version:\n        if held.deleted",
    after="if held.version is None or seen.version != held.version:\n        if held.deleted",
    story="tests/stories/test_p04_p05_versions.py::"
    "test_p04_versions_only_grow_whatever_the_order_and_whoever_writes",
)
STABLE_KEY = Mutant(
    promise="P7",
    file="outbox/destinations/http.py",
    before="_fit(without, request.idempotency_key)",
    after="_fit(without, f\"{request.idempotency_key}:{__import__('time').time_ns()}\")",
    story="tests/stories/test_p07_p08_calls.py::"
    "test_p07_attempts_are_alike_over_a_restart_with_another_configuration",
)
MUTANTS = (
    CLAIM,
    Mutant(
        promise="P2",
        file="reconciler/ledger/commit.py",
        before="results = await transact(engine, work)",
        after="results = await work(await engine.connect())",
        story="tests/stories/test_p02_acknowledgement.py::"
        "test_p02_a_daemon_killed_right_after_it_answered",
    ),
    Mutant(
        promise="P3",
        file="reconciler/ledger/commit.py",
        before="transact(engine, work)",
        after='transact(engine.execution_options(isolation_level="AUTOCOMMIT"), work)',
        story="tests/stories/test_p03_all_or_nothing.py::"
        "test_p03_where_the_users_statement_fails_nothing_of_the_event_remains",
    ),
    GUARD,
    Mutant(
        promise="P5",
        file="reconciler/ledger/guard.py",
        before="held=held, fact=not twice, stale=True)",
        after="held=held, fact=not twice, stale=False)",
        story="tests/stories/test_p04_p05_versions.py::"
        "test_p05_an_older_event_changes_nothing_and_its_facts_count_as_configured",
    ),
    Mutant(
        promise="P6",
        file="reconciler/ledger/keys.py",
        before='key = f"{event.sender}:{event.kind}:{event.key}:{event.version}:{effect}"',
        after='key = f"{event.event_id}:{effect}"',
        story="tests/stories/test_p06_one_cause.py",
    ),
    STABLE_KEY,
    Mutant(
        promise="P8",
        file="outbox/relay.py",
        before="await call(destination, leased)",
        after='(await (await self._engine.connect()).exec_driver_sql("select 1"), '
        "await call(destination, leased))[1]",
        story="tests/stories/test_p07_p08_calls.py::"
        "test_p08_no_transaction_is_open_while_others_are_waited_for",
    ),
    Mutant(
        promise="P9",
        file="outbox/verdict.py",
        before="success = _succeeded(answer, rules)",
        after="success = answer.status < 400",
        story="tests/stories/test_p09_p10_delivered.py::"
        "test_p09_nothing_but_a_success_is_delivered",
    ),
    Mutant(
        promise="P10",
        file="outbox/taking.py",
        before="key_life=destination.key_life(lease=self._lease)",
        after="key_life=timedelta(days=36500)",
        story="tests/stories/test_p09_p10_delivered.py::"
        "test_p10_a_key_that_the_provider_may_have_forgotten_is_not_used_again",
    ),
    Mutant(
        promise="P10",
        file="reconciler/daemon_generation.py",
        before="verdict is not Verdict.CURRENT or not settled:",
        after="not settled:",
        story="tests/test_generation.py::test_no_call_goes_out_before_a_restore_is_noticed",
    ),
    Mutant(
        promise="P11",
        file="reconciler/ledger/claiming.py",
        before="if (horizon := found.get(case.event.sender))",
        after="if (horizon := None)",
        story="tests/stories/test_p11_kept_long_enough.py::"
        "test_p11_an_event_from_before_the_purge_is_kept_for_a_person",
    ),
    Mutant(
        promise="P12",
        file="reconciler/ledger/guard.py",
        before="and (held.version is None or seen.version > held.version)\n",
        after="and held.version is None\n",
        story="tests/stories/test_p12_lost_webhooks.py::"
        "test_p12_a_lost_webhook_is_corrected_and_comes_too_late",
    ),
    Mutant(
        promise="P13",
        file="reconciler/polling/checkpoint.py",
        before="return cls._from_json(value) if value else cls()",
        after="return cls()",
        story="tests/stories/test_p13_p14_scans.py::"
        "test_p13_a_scan_killed_between_two_pages_goes_on_where_it_was",
    ),
    Mutant(
        promise="P14",
        file="reconciler/polling/drift.py",
        before="return absent > few and absent * 100 > held * percent",
        after="return False",
        story="tests/stories/test_p13_p14_scans.py::"
        "test_p14_a_listing_that_is_empty_all_at_once_deletes_nothing",
    ),
    Mutant(
        promise="P15",
        file="reconciler/ledger/commit.py",
        before="if len(events) == 1:",
        after="if len(events) >= 1:",
        story="tests/stories/test_p15_poison.py::"
        "test_p15_a_poisoned_event_keeps_no_neighbour_waiting",
    ),
    Mutant(
        promise="P15",
        file="outbox/lanes.py",
        before="earlier.c.lane_position < later.c.lane_position",
        after="earlier.c.lane_position > later.c.lane_position",
        story="tests/outbox/test_lanes.py::"
        "test_a_lane_goes_one_after_the_other_across_effects_kinds_and_destinations",
    ),
    Mutant(
        promise="P15",
        file="outbox/lease_statement.py",
        before="~paused.correlate(outbox).exists(),",
        after="~paused.correlate(outbox).exists() | outbox.c.redriven.is_not(None),",
        story="tests/outbox/test_flow.py::test_a_pause_of_one_effect_lets_the_others_go",
    ),
    Mutant(
        promise="P15",
        file="outbox/look_statements.py",
        before="~paused.correlate(outbox).exists(),",
        after="~paused.correlate(outbox).exists() | outbox.c.redriven.is_not(None),",
        story="tests/outbox/test_looking_up.py::"
        "test_nothing_is_looked_up_at_a_paused_destination_or_of_a_paused_effect",
    ),
    Mutant(
        promise="P15",
        file="outbox/flow_statements.py",
        before='whole = paused.where(pauses.c.effect == "").exists()',
        after='whole = paused.where(pauses.c.effect == "all").exists()',
        story="tests/outbox/test_flow.py::test_a_pause_counts_from_the_next_lease_of_every_relay",
    ),
    Mutant(
        promise="P15",
        file="outbox/breaker.py",
        before="if failures < breaker.after:",
        after="if failures < breaker.after * 100:",
        story="tests/outbox/test_flow.py::test_a_destination_that_is_not_well_is_left_alone",
    ),
    Mutant(
        promise="P15",
        file="outbox/flow.py",
        before="most=1 if probe else None if tokens is None else int(tokens)",
        after="most=None if tokens is None else int(tokens)",
        story="tests/outbox/test_flow.py::test_a_probe_that_fails_waits_longer_for_the_next",
    ),
    Mutant(
        promise="P15",
        file="outbox/redrive_runs.py",
        before=".where(meant, redrive_runs.c.state == RUNNING)",
        after=".where(meant, redrive_runs.c.state == DONE)",
        story="tests/outbox/test_redrive_runs.py::"
        "test_a_run_keeps_to_its_rate_and_is_stopped_by_command",
    ),
    Mutant(
        promise="P16",
        file="reconciler/receiver/body.py",
        before="if size > limit:",
        after="if size < 0:",
        story="tests/stories/test_p16_bounded.py::test_p16_a_body_has_a_size_and_memory_a_limit",
    ),
    Mutant(
        promise="P16",
        file="reconciler/logs.py",
        before="with contextlib.suppress(OSError):\n            self._stream.write(text)",
        after="with contextlib.suppress(KeyError):\n            self._stream.write(text)",
        story="tests/stories/test_p16_bounded.py::test_p16_a_log_that_is_full_keeps_nobody_waiting",
    ),
    Mutant(
        promise="P16",
        file="reconciler/transactions.py",
        before="return bool(expected) and sqlstate_of(error) in GONE",
        after="return bool(expected) and sqlstate_of(error) not in GONE",
        story="tests/test_daemon_life.py::test_tables_that_are_gone_for_a_while_are_waited_for",
    ),
    Mutant(
        promise="P16",
        file="outbox/flow.py",
        before="most=1 if probe else None if tokens is None else int(tokens)",
        after="most=1 if probe else None",
        story="tests/outbox/test_flow.py::test_a_rate_is_shared_by_relays_and_effects",
    ),
    Mutant(
        promise="P16",
        file="outbox/lease_statement.py",
        before="left = most - under_way.c.number",
        after="left = most - under_way.c.number * 0",
        story="tests/outbox/test_ahead.py::test_slots_that_another_process_uses_are_left_to_it",
    ),
    Mutant(
        promise="P16",
        file="outbox/lease_statement.py",
        before="expired = due.expires_at <= func.now()",
        after="expired = due.expires_at <= due.first_attempt_at",
        story="tests/outbox/test_flow.py::test_what_is_too_old_when_it_would_be_sent_is_skipped",
    ),
    Mutant(
        promise="P16",
        file="outbox/destinations/http.py",
        before="                return line\n            await line.close()\n",
        after="                return line\n",
        story="tests/outbox/test_exchange.py::"
        "test_a_connection_that_lay_idle_for_too_long_is_closed",
    ),
    Mutant(
        promise="P17",
        file="reconciler/receiver/app.py",
        before="Told(status=200, outcome=Outcome.QUARANTINED",
        after="Told(status=500, outcome=Outcome.QUARANTINED",
        story="tests/stories/test_p17_content.py::"
        "test_p17_no_content_of_an_authentic_delivery_is_answered_with_a_5xx",
    ),
    Mutant(
        promise="P18",
        file="reconciler/receiver/headers.py",
        before="bool(_SECRET.search(name)) or any(",
        after="bool(_SECRET.search(name)) and any(",
        story="tests/stories/test_p18_secrets.py::test_p18_no_canary_is_found_anywhere",
    ),
    Mutant(
        promise="P19",
        file="reconciler/lifecycle.py",
        before="self.due[name] = self.clock() + self.bounds[name]",
        after="self.due[name] = self.clock() + self.bounds[name] * 60",
        story="tests/stories/test_p19_health.py::"
        "test_p19_a_frozen_loop_is_told_and_a_long_call_is_none",
    ),
    Mutant(
        promise="P20",
        file="reconciler/ledger/history.py",
        before="    return BASELINE\n",
        after="    return None\n",
        story="tests/stories/test_p20_history.py::"
        "test_p20_a_thousand_old_paid_orders_are_not_charged_and_a_new_one_is",
    ),
    Mutant(
        promise="P9",
        file="outbox/lease_statement.py",
        before="and_(due.c.idempotent, ~last)",
        after="or_(due.c.idempotent, ~last)",
        story="tests/outbox/test_ahead.py::"
        "test_calls_without_a_key_are_never_leased_ahead_of_those_that_have_one",
    ),
    Mutant(
        promise="P9",
        file="outbox/looking_up.py",
        before="if absent and not found and since >= asked.lag:",
        after="if absent and not found and since >= -asked.lag:",
        story="tests/outbox/test_looking_up.py::test_absence_within_the_lag_proves_nothing",
    ),
    Mutant(
        promise="P3",
        file="reconciler/ledger/following.py",
        before="return effect in self.rules.delivered",
        after="return effect not in self.rules.delivered",
        story="tests/cases/test_c73_told.py::test_what_was_answered_is_kept_with_the_mark",
    ),
    Mutant(
        promise="P15",
        file="reconciler/ledger/following.py",
        before="all(one.name != effect for one in alerts)",
        after="all(one.name for one in alerts)",
        story="tests/cases/test_c30_told.py::test_an_alert_that_dies_raises_none",
    ),
    Mutant(
        promise="P15",
        file="reconciler/operations/silence.py",
        before='(sender, told or "never")',
        after="(sender, rfc3339(now))",
        story="tests/cases/test_c30_told.py::"
        "test_a_sender_that_fell_silent_is_told_once_until_it_speaks_again",
    ),
    Mutant(
        promise="P18",
        file="outbox/egress.py",
        before="if (why := refusal(text, port, egress)) is not None:",
        after="if (why := refusal(text, port, egress)) is not None and text == addresses[0]:",
        story="tests/outbox/test_guard.py::test_all_that_a_name_means_is_judged",
    ),
    Mutant(
        promise="P18",
        file="outbox/destinations/http.py",
        before="tls=self.tls if encrypted else None,\n                host=host,",
        after='tls=self.tls if encrypted else None,\n                host="localhost",',
        story="tests/outbox/test_guard.py::"
        "test_who_shows_a_certificate_for_another_name_is_sent_nothing",
    ),
)


@contextmanager
def mutated(*mutants: Mutant) -> Iterator[Path]:
    """A directory with a copy of the packages in which *mutants* are made."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy = Path(name)
        for part in COPIED:
            # an installed package has its data within it: here that stands beside it
            data = ("migrations", "config") if part == "reconciler" else ()
            beside = shutil.ignore_patterns("__pycache__", *data)
            shutil.copytree(place_of(part), copy / part, ignore=beside)
        for page in ("README.md", "pyproject.toml"):
            shutil.copy(ROOT / page, copy / page)
        for mutant in mutants:
            file = copy / mutant.file
            text = file.read_text()
            assert 1 == text.count(mutant.before), f"{mutant.file}: {mutant.before}"
            file.write_text(text.replace(mutant.before, mutant.after))
        yield copy


def place_of(part: str) -> Path:
    """Where a part lies: in the checkout, or in the installed package (data in `reconciler`)."""
    if (ROOT / part).is_dir():
        return ROOT / part
    import importlib

    package = importlib.import_module(part if part in ("reconciler", "outbox") else "reconciler")
    assert package.__file__ is not None
    inside = Path(package.__file__).parent
    return inside if part in ("reconciler", "outbox") else inside / part


def run_in(
    copy: Path, *words: str, program: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python module with the packages of *copy* first on its path."""
    return subprocess.run(
        [program, "-m", *words],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def typed(copy: Path, *, cache: Path) -> str | None:
    """What mypy has against *copy*; None: nothing."""
    ran = run_in(copy, "mypy", "--cache-dir", str(cache))
    return None if ran.returncode == 0 else ran.stdout + ran.stderr


def tried(mutant: Mutant, *, cache: Path) -> "Tried":
    """Make *mutant*, type-check it, and run its story."""
    begun = time.monotonic()
    with mutated(mutant) as copy:
        if wrong := typed(copy, cache=cache):
            return Tried(mutant=mutant, fault=f"mypy: {wrong}")
        verdicts = copy / "verdicts.jsonl"
        words = ("-n0", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.verdicts")
        ran = run_in(copy, "pytest", *words, mutant.story, VERDICTS=str(verdicts))
        told = assertion(verdicts) if ran.returncode == 1 else None
        said = verdicts.read_text() if verdicts.exists() else ""
    return Tried(
        mutant=mutant,
        caught=told,
        fault=None if told else f"{said}{ran.stdout[-3000:]}",
        seconds=time.monotonic() - begun,
    )


def main(wanted: list[str]) -> int:
    """Try all that are *wanted*; 1 where one was not caught as it should be."""
    if unknown := set(wanted) - {one.promise for one in MUTANTS}:
        sys.stderr.write(f"no such promise: {', '.join(sorted(unknown))}\n")
        return 2
    mutants = [one for one in MUTANTS if not wanted or one.promise in wanted]
    survivors = 0
    with a_cluster() as url, tempfile.TemporaryDirectory(prefix="mypy-") as name:
        os.environ["TEST_DATABASE_URL"] = url
        caches = warmed(Path(name))
        with ThreadPoolExecutor(AT_ONCE) as workers:
            free = list(caches)

            def work(mutant: Mutant) -> Tried:
                cache = free.pop()  # as many as there are workers
                try:
                    return tried(mutant, cache=cache)
                finally:
                    free.append(cache)

            for one in workers.map(work, mutants):
                survivors += one.caught is None
                sys.stdout.write(str(one))
                sys.stdout.flush()
    return 1 if survivors else 0


def warmed(place: Path) -> list[Path]:
    """A cache of mypy's for each worker, filled from what is not mutated."""
    caches = [place / str(number) for number in range(AT_ONCE)]
    with mutated() as copy:
        if wrong := typed(copy, cache=caches[0]):
            raise SystemExit(f"without any mutation: {wrong}")
    for other in caches[1:]:
        shutil.copytree(caches[0], other)
    return caches


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of one mutant."""

    mutant: Mutant
    caught: str | None = None  #: the assertion
    fault: str | None = None  #: why it does not count
    seconds: float = 0.0

    def __str__(self) -> str:
        line = f"{self.mutant.promise:<4} {self.mutant.file:<36} {self.seconds:4.0f} s  "
        if self.caught is None:
            return f"{line}NOT CAUGHT\n{self.fault}\n"
        return f"{line}{self.caught[:100]}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

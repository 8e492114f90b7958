"""What /metrics shows: counters of the parts, gauges that a background query refreshes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from outbox.calling import Attempted
from reconciler.receiver.app import Answered

DELAYS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Every family that we expose; label values are bounded: configured names and closed lists."""

    def __init__(self, *, senders: tuple[str, ...]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.senders = senders
        self.requests = Counter(
            "reconciler_webhook_requests",
            "Deliveries answered, by what they were answered.",
            ["sender", "answer"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "reconciler_webhook_request_duration_seconds",
            "From the first byte of a delivery to its answer.",
            ["sender"],
            buckets=DELAYS,
            registry=self.registry,
        )
        self.events = Counter(
            "reconciler_events",
            "Events by what applying them came to.",
            ["sender", "outcome"],
            registry=self.registry,
        )
        self.other_bodies = Counter(
            "reconciler_events_other_body",
            "Duplicates whose body was not that of the event that was claimed under their id.",
            ["sender"],
            registry=self.registry,
        )
        self.corrections = Counter(
            "reconciler_corrections",
            "Corrections made, by the drift they corrected.",
            ["sender", "drift"],
            registry=self.registry,
        )
        self.scans = Counter(
            "reconciler_scans", "Scans ended.", ["sender", "result"], registry=self.registry
        )
        self.attempts = Counter(
            "reconciler_outbox_attempts",
            "Calls made, by verdict.",
            ["destination", "verdict"],
            registry=self.registry,
        )
        self.attempt_seconds = Histogram(
            "reconciler_outbox_attempt_duration_seconds",
            "How long one call took.",
            ["destination"],
            buckets=DELAYS,
            registry=self.registry,
        )
        # To find the series of a call costs more than to count it.
        self._attempts_of = cache(self.attempts.labels)
        self._attempt_seconds_of = cache(self.attempt_seconds.labels)
        self.add_gauges()

    def add_gauges(self) -> None:
        """What a background query refreshes."""
        self.entries = Gauge(
            "reconciler_outbox_entries",
            "Outbox entries that need somebody, by state.",
            ["state"],
            registry=self.registry,
        )
        self.oldest_due = Gauge(
            "reconciler_outbox_oldest_due_timestamp_seconds",
            "When the oldest entry that is due became due; 0: none is.",
            registry=self.registry,
        )
        self.quarantined = Gauge(
            "reconciler_events_quarantined",
            "Events kept in quarantine.",
            ["sender"],
            registry=self.registry,
        )
        self.last_delivery = Gauge(
            "reconciler_event_last_accepted_timestamp_seconds",
            "When the sender's last event was accepted; 0: never.",
            ["sender"],
            registry=self.registry,
        )
        self.oldest_transaction = Gauge(
            "reconciler_database_oldest_transaction_seconds",
            "How long the oldest transaction in our database has been open.",
            registry=self.registry,
        )
        self.clock_skew = Gauge(
            "reconciler_clock_skew_seconds",
            "How far this host's clock is ahead of the database's.",
            registry=self.registry,
        )
        self.generation = Gauge(
            "reconciler_generation",
            "The database's generation; it rises when the database went back in time.",
            registry=self.registry,
        )
        self.held = Gauge(
            "reconciler_generation_held_entries",
            "Outbox entries that became uncertain when the current generation was opened.",
            registry=self.registry,
        )
        self.add_flow_gauges()
        self.stalled = Gauge(
            "reconciler_loop_stalled",
            "1 where a loop has made no progress within its bound.",
            ["loop"],
            registry=self.registry,
        )

    def add_flow_gauges(self) -> None:
        """How destinations stand, and bulk redrives under way."""
        self.breaker_open = Gauge(
            "reconciler_destination_breaker_open",
            "1 while a destination is left alone because it is not well.",
            ["destination"],
            registry=self.registry,
        )
        self.pauses = Gauge(
            "reconciler_destination_pauses",
            "Pauses that stand: of a destination, and of effects there.",
            ["destination"],
            registry=self.registry,
        )
        self.slowed_until = Gauge(
            "reconciler_destination_slowed_until_timestamp_seconds",
            "Until when a destination asked for fewer calls than its rate; 0: it did not.",
            ["destination"],
            registry=self.registry,
        )
        self.redrive_runs = Gauge(
            "reconciler_redrive_runs",
            "Bulk redrives that are being worked off.",
            registry=self.registry,
        )
        self.redrive_left = Gauge(
            "reconciler_redrive_entries_left",
            "Entries that they have not come to yet.",
            registry=self.registry,
        )

    def answered(self, *, sender: str, answer: str, seconds: float) -> None:
        """Count one answered delivery; a sender that nobody configured counts as `unknown`."""
        name = sender if sender in self.senders else "unknown"
        self.requests.labels(name, answer).inc()
        self.request_seconds.labels(name).observe(seconds)

    def request_answered(self, one: Answered) -> None:
        self.answered(sender=one.sender, answer=one.reason or one.outcome, seconds=one.seconds)

    def attempted(self, one: Attempted) -> None:
        """Count one call."""
        self._attempts_of(one.destination, one.verdict.value).inc()
        self._attempt_seconds_of(one.destination).observe(one.seconds)

    def show(self, counts: Mapping[str, object]) -> None:
        """Take over the figures of `operations.status`."""
        outbox = counts["outbox"]
        assert isinstance(outbox, Mapping)
        for state in ("pending", "dead", "uncertain", "skipped"):
            self.entries.labels(state).set(outbox[state])
        due = outbox["oldest_due_at"]
        self.oldest_due.set(due.timestamp() if due else 0)
        self.show_flow(outbox)
        generation = counts["generation"]
        if isinstance(generation, Mapping):
            self.generation.set(generation["number"])
            self.held.set(generation["held"])
        senders = counts["senders"]
        assert isinstance(senders, Mapping)
        for name, sender in senders.items():
            self.quarantined.labels(name).set(sender["quarantined"])
            last = sender["last_delivery_at"]
            self.last_delivery.labels(name).set(last.timestamp() if last else 0)

    def show_flow(self, outbox: Mapping[str, Any]) -> None:
        """Take over how destinations stand, and what is being redriven."""
        for gauge in (self.breaker_open, self.pauses, self.slowed_until):
            gauge.clear()  # of what is configured no more nothing is said
        for name, one in outbox["destinations"].items():
            self.breaker_open.labels(name).set(one["breaker"] == "open")
            self.pauses.labels(name).set((one["paused"] is not None) + len(one["paused_effects"]))
            until = one["slowed_until"]
            self.slowed_until.labels(name).set(until.timestamp() if until else 0)
        runs = outbox["redrive_runs"]
        self.redrive_runs.set(len(runs))
        self.redrive_left.set(sum(run["left"] for run in runs))

    def render(self) -> bytes:
        return generate_latest(self.registry)

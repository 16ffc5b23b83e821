"""The server's metrics of a run for Prometheus (docs/monitoring.md).

No metric has a label for single clients, because each of thousands of clients would create a time series. Clients
export their own metrics (:mod:`fenchel.client.metrics`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.round_columns import COUNTS, PARTS, SOCKETS, TIMES, Row
from fenchel.common.telemetry.exposition import Exposition
from fenchel.fleet.calls import Call
from fenchel.server.membership.client_status import STATES, State, state_of
from fenchel.server.telemetry.observer import Observer, OngoingRun
from fenchel.server.telemetry.time_breakdown import CallBreakdown

_PARTS = (*PARTS, "unaccounted")
_LAYERS = {
    ("payload", "down"): lambda call: call.body_bytes,
    ("payload", "up"): lambda call: call.reply_bytes,
    ("wire", "down"): lambda call: call.wire_down,
    ("wire", "up"): lambda call: call.wire_up,
    ("socket", "down"): lambda call: 0.0 if call.socket_bytes is None else call.socket_bytes.down,
    ("socket", "up"): lambda call: 0.0 if call.socket_bytes is None else call.socket_bytes.up,
}
_NO_FIGURES = frozenset({*COUNTS, *SOCKETS, *TIMES, "clients"})
"""Columns of a round's row that have a metric of their own, or are no figures of the model."""


class ServerMetrics(Observer):
    """Observer that updates the metrics of a run."""

    def __init__(self, run: str, settings: RunSettings) -> None:
        self.exposition = made = Exposition()
        made.info("fenchel_run", "The run.", run=run, algorithm=settings.algorithm.name)
        self._planned = made.gauge("fenchel_rounds_planned", "Rounds that the run is to have.")
        self._planned.set(settings.rounds)
        self._rounds = made.counter("fenchel_rounds_total", "Rounds done by this process.")
        self._begun = made.gauge("fenchel_round", "The round that goes on, or went on last.")
        self._ended = made.gauge("fenchel_round_ended_timestamp_seconds", "When the last round was done.")
        self._seconds = made.histogram("fenchel_round_seconds", "Duration of rounds.")
        self._parts = made.counter("fenchel_round_part_seconds_total", "Duration of rounds, by part.", "part")
        self._evaluation = made.counter("fenchel_evaluation_seconds_total", "Evaluation between rounds.")
        self._idle = made.counter(
            "fenchel_idle_seconds_total", "How long the average client waited for the slowest one."
        )
        self._calls = made.counter("fenchel_calls_total", "Instructions, by phase and outcome.", "phase", "outcome")
        self._total = made.histogram(
            "fenchel_call_seconds", "Instructions, from being queued to the reply being decoded.", "phase"
        )
        self._network = made.histogram("fenchel_call_network_seconds", "Their time between the two sides.", "phase")
        self._compute = made.histogram("fenchel_call_compute_seconds", "Their time in clients' algorithms.", "phase")
        self._bytes = made.counter(
            "fenchel_transferred_bytes_total",
            "Bytes to clients (down) and from them (up), with evaluation: arrays, frames, and all on the connections.",
            "layer",
            "direction",
        )
        self._clients = made.gauge("fenchel_clients", "Clients of the run, by state.", "state")
        self._saving = made.gauge("fenchel_checkpoint_seconds", "Duration of the last checkpoint's writing.")
        self._saved = made.gauge(
            "fenchel_checkpoint_timestamp_seconds", "When the writing of the last checkpoint began."
        )
        self._figures = made.gauge(
            "fenchel_figure", "The last value of each figure of the model and of the algorithm.", "figure"
        )

    def begun(self, run: OngoingRun) -> None:
        """Count the clients of a run by their status, whenever the metrics are read."""

        def clients_in(state: State) -> int:
            # Copy the values in one atomic step, as another thread serves Prometheus requests.
            return sum(state_of(member) == state for member in list(run.admission.members.values()))

        for state in STATES:
            self._clients.labels(state).set_function(partial(clients_in, state))

    def round_begun(self, t: int) -> None:
        """Set the number of the current round."""
        self._begun.set(t)

    def round_ended(self, row: Row) -> None:
        """Update the metrics of rounds, checkpoints and figures with the row of a round."""
        self._rounds.inc()
        self._ended.set(row["unix"])
        self._seconds.observe(row["seconds"])
        for part in _PARTS:
            self._parts.labels(part).inc(max(row[f"{part}_s"], 0.0))
        self._evaluation.inc(row["evaluation_s"])
        self._idle.inc(row["idle_s"])
        if not math.isnan(row["checkpoint_unix"]):
            self._saving.set(row["checkpoint_s"])
            self._saved.set(row["checkpoint_unix"])
        for name, value in row.items():
            if name not in _NO_FIGURES and not math.isnan(value):
                self._figures.labels(name).set(value)

    def calls(self, calls: Sequence[Call]) -> None:
        """Count the outcomes and bytes of instructions, and observe their times."""
        for (phase, outcome), number in Counter((call.phase, call.outcome) for call in calls).items():
            self._calls.labels(phase, outcome).inc(number)
        for (layer, direction), size in _LAYERS.items():
            self._bytes.labels(layer, direction).inc(sum(map(size, calls)))
        for call in calls:
            costs = CallBreakdown.of(call)
            if not math.isnan(costs.until_decoded):
                self._total.labels(call.phase).observe(costs.until_decoded)
                self._network.labels(call.phase).observe(costs.network)
                self._compute.labels(call.phase).observe(costs.stages["compute_s"])

"""Prometheus metrics of the clients in a process, listed in ``docs/monitoring.md``.

Every metric except the histogram of instruction times has the client id as a label. Instruction times are those that
the client sends with its reply.
"""

from __future__ import annotations

from fenchel.client.observer import ClientObserver
from fenchel.common.storage.call_columns import CLIENT_STAGES
from fenchel.common.telemetry.exposition import Exposition
from fenchel.proto import fenchel_pb2 as pb

_PARTS = tuple(stage.timing for stage in CLIENT_STAGES)


class ClientMetrics(ClientObserver):
    """Observer that keeps Prometheus counters, gauges and histograms of clients."""

    times_round_trips = True

    def __init__(self) -> None:
        self.exposition = made = Exposition()
        self._instructions = made.counter(
            "fenchel_client_instructions_total",
            "Instructions that were answered, and whether the algorithm could (done) or could not (failed).",
            *("client", "phase", "outcome"),
        )
        self._parts = made.counter(
            "fenchel_client_part_seconds_total", "Where the time of instructions has gone.", "client", "part"
        )
        self._seconds = made.histogram(
            "fenchel_client_instruction_seconds", "From an instruction's last byte to the first of its reply.", "phase"
        )
        self._bytes = made.counter(
            "fenchel_client_payload_bytes_total",
            "Bytes of arrays from the server (down) and to it (up), with evaluation.",
            *("client", "direction"),
        )
        self._connected = made.gauge("fenchel_client_connected", "Whether the client's stream is open.", "client")
        self._streams = made.counter(
            "fenchel_client_streams_total", "Streams that were opened: one, and one for each reconnect.", "client"
        )
        self._round_trip = made.gauge(
            "fenchel_client_round_trip_seconds", "The last round trip to the server, without work.", "client"
        )
        self._heard = made.gauge(
            "fenchel_client_instruction_timestamp_seconds", "When the last instruction came.", "client"
        )

    def opening(self, client: str) -> str:
        """Count a stream."""
        self._streams.labels(client).inc()
        self._connected.labels(client).set(1)
        return ""

    def closed(self, client: str) -> None:
        """Mark the client as disconnected."""
        self._connected.labels(client).set(0)

    def round_trip(self, client: str, seconds: float) -> None:
        """Set the last round trip."""
        self._round_trip.labels(client).set(seconds)

    def answered(self, client: str, instruction: pb.Instruction, reply: pb.Reply, size: int) -> None:
        """Count an instruction, its times and the bytes of both messages."""
        timing = reply.timing
        self._instructions.labels(client, instruction.phase, "failed" if reply.failure else "done").inc()
        for part in _PARTS:
            self._parts.labels(client, part).inc(max(getattr(timing, f"{part}_ns"), 0) / 1e9)
        self._seconds.labels(instruction.phase).observe(timing.answer_ns / 1e9)
        self._bytes.labels(client, "down").inc(instruction.payload.body_bytes)
        self._bytes.labels(client, "up").inc(size)
        self._heard.labels(client).set(timing.received_unix_ns / 1e9)

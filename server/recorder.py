"""What a run leaves behind besides its model: a row a round, a row an instruction, a log."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from common.run_folder import RunFolder
from common.tables import TableLog
from proto import fenchel_pb2 as pb
from server.calls import Call
from server.evaluation import NAMES

_CALLS = pa.schema(
    [
        ("round", pa.int32()),
        ("phase", pa.string()),
        ("kind", pa.string()),
        ("client", pa.string()),
        ("sequence", pa.int64()),
        ("outcome", pa.string()),
        ("queued_unix", pa.float64()),
        ("bytes_down", pa.int64()),
        ("bytes_up", pa.int64()),
        ("wire_down", pa.int64()),
        ("wire_up", pa.int64()),
        ("total_s", pa.float64()),
        ("queue_s", pa.float64()),
        ("send_s", pa.float64()),
        ("network_s", pa.float64()),
        ("client_queue_s", pa.float64()),
        ("client_decode_s", pa.float64()),
        ("compute_s", pa.float64()),
        ("encrypt_s", pa.float64()),
        ("decrypt_s", pa.float64()),
        ("encryptions", pa.int64()),
        ("decryptions", pa.int64()),
        ("journal_s", pa.float64()),
        ("client_encode_s", pa.float64()),
        ("receive_s", pa.float64()),
        ("decode_s", pa.float64()),
    ]
)
_INTEGERS = (
    "round",
    "asked",
    "counted",
    "late",
    "failed",
    "connected",
    "bytes_down",
    "bytes_up",
    "wire_down",
    "wire_up",
)
_PARTS = ("compute", "encryption", "coding", "network")
_TIMES = ("seconds", *(f"{part}_s" for part in _PARTS), "waiting_s", "evaluation_s", "unix")


@dataclass(frozen=True)
class _Costs:
    """Seconds of one call: where the time between question and answer went. Nan where it is not known."""

    total: float
    compute: float
    encryption: float
    coding: float
    network: float

    @classmethod
    def of(cls, call: Call) -> _Costs:
        timing = call.timing
        if timing is None or not call.last_received_ns:
            return cls(math.nan, math.nan, math.nan, math.nan, math.nan)
        encryption_ns = timing.encrypt_ns + timing.decrypt_ns
        coding_ns = timing.decode_ns + timing.journal_ns + timing.encode_ns
        client_ns = timing.queue_ns + timing.compute_ns + encryption_ns + coding_ns
        decode_ns = max(call.decoded_ns - call.last_received_ns, 0)
        return cls(
            total=(call.last_received_ns + decode_ns - call.queued_ns) / 1e9,
            compute=timing.compute_ns / 1e9,
            encryption=encryption_ns / 1e9,
            coding=(coding_ns + decode_ns) / 1e9,
            network=max(call.last_received_ns - call.first_sent_ns - client_ns, 0) / 1e9,
        )


def _row(call: Call) -> tuple[Any, ...]:
    costs = _Costs.of(call)
    timing = call.timing or pb.Timing()
    return (
        call.round,
        call.phase,
        pb.Kind.Name(call.kind).lower(),
        call.client,
        call.sequence,
        call.outcome,
        call.queued_unix_ns / 1e9,
        call.body_bytes,
        call.reply_bytes,
        call.wire_down,
        call.wire_up,
        costs.total,
        _seconds(call.queued_ns, call.first_sent_ns),
        _seconds(call.first_sent_ns, call.last_sent_ns),
        costs.network,
        timing.queue_ns / 1e9,
        timing.decode_ns / 1e9,
        timing.compute_ns / 1e9,
        timing.encrypt_ns / 1e9,
        timing.decrypt_ns / 1e9,
        timing.encryptions,
        timing.decryptions,
        timing.journal_ns / 1e9,
        timing.encode_ns / 1e9,
        _seconds(call.first_received_ns, call.last_received_ns),
        _seconds(call.last_received_ns, call.decoded_ns),
    )


def _seconds(start_ns: int, stop_ns: int) -> float:
    return (stop_ns - start_ns) / 1e9 if start_ns and stop_ns else math.nan


def _critical(calls: Sequence[Call]) -> list[_Costs]:
    """Return the costs of each exchange's last answer: those that the round had to wait for."""
    last: dict[int, Call] = {}
    for call in calls:
        if call.outcome == "counted" and call.exchange is not None:
            key = id(call.exchange)
            if key not in last or call.last_received_ns > last[key].last_received_ns:
                last[key] = call
    return [_Costs.of(call) for call in last.values()]


@dataclass
class Recorder:
    """Writes the tables of a run.

    Parameters
    ----------
    folder
        Of the run.
    figures
        Names of the algorithm's own figures.
    kept_rounds
        Rounds that a resumed run keeps.
    """

    folder: RunFolder
    figures: tuple[str, ...]
    kept_rounds: int = 0
    _rounds: list[tuple[Any, ...]] = field(default_factory=list)
    _calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fields = [(name, pa.int64()) for name in _INTEGERS]
        fields += [(name, pa.float64()) for name in (*_TIMES, *NAMES, *self.figures)]
        self._columns = [name for name, _ in fields]
        self._metrics_log = TableLog(self.folder.metrics, pa.schema(fields), self.kept_rounds)
        self._calls_log = TableLog(self.folder.calls, _CALLS, self.kept_rounds)

    def round(
        self,
        t: int,
        seconds: float,
        evaluation_seconds: float,
        calls: Sequence[Call],
        connected: int,
        figures: Mapping[str, float],
    ) -> dict[str, float]:
        """Note a round; return its row.

        Parameters
        ----------
        seconds, evaluation_seconds
            What the round and the evaluation after it took.
        calls
            All instructions since the last row: of the round and its evaluation, and before the first round those
            of the setup. Only those of the round itself enter the row.
        figures
            Results of the evaluation, and the algorithm's own.
        """
        self.calls(calls)
        own = [call for call in calls if call.kind != pb.INSPECT and call.round == t]
        critical = _critical(own)
        spent = {f"{part}_s": sum(getattr(costs, part) for costs in critical) for part in _PARTS}
        row = {
            "round": t,
            "asked": sum(call.kind == pb.ASK for call in own),
            **{
                outcome: sum(call.outcome == outcome for call in own)
                for outcome in ("counted", "late", "failed")
            },
            "connected": connected,
            "bytes_down": sum(call.body_bytes for call in own),
            "bytes_up": sum(call.reply_bytes for call in own),
            "wire_down": sum(call.wire_down for call in own),
            "wire_up": sum(call.wire_up for call in own),
            "seconds": seconds,
            **spent,
            "waiting_s": max(seconds - sum(spent.values()), 0.0),
            "evaluation_s": evaluation_seconds,
            "unix": time.time(),
            **figures,
        }
        self._rounds.append(tuple(row.get(name, math.nan) for name in self._columns))
        return row

    def calls(self, calls: Sequence[Call]) -> None:
        """Note instructions that belong to no round."""
        self._calls.extend(_row(call) for call in calls)

    def flush(self) -> None:
        """Write what has been noted. May run in another thread than :meth:`round`, but not at the same time."""
        rounds, self._rounds = self._rounds, []
        calls, self._calls = self._calls, []
        self._metrics_log.append(rounds)
        self._calls_log.append(calls)

    def finish(self) -> None:
        """Write the rest, and turn the tables into Parquet files."""
        self.flush()
        self._metrics_log.finish()
        self._calls_log.finish()

    def close(self) -> None:
        """Write the rest, and leave the tables for a resumed run."""
        self.flush()
        self._metrics_log.close()
        self._calls_log.close()

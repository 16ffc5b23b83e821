"""Stages of a call and their columns in ``calls.parquet``.

A call is one instruction to a client with its reply. A new stage needs an entry here and its time stamps: a field of
``proto.Timing`` for clients, or of ``Call`` on the server. The tables, the parts of time and the report follow from
this module. The projection (``fenchel/report/timeline.py``) refers to some stages by name. The transfer times
(``fenchel/server/telemetry/time_breakdown.py``) must exclude any new server stage before the reply's arrival.
"""

from __future__ import annotations

from typing import NamedTuple


class CallStage(NamedTuple):
    """Stage of a call. Stages do not overlap.

    Attributes
    ----------
    column
        Column of ``calls.parquet`` with the stage's seconds.
    part
        Field of :class:`fenchel.common.storage.time_parts.TimeParts` to which the stage belongs.
    timing
        Field of ``proto.Timing`` that has the duration of a client's stage, without ``_ns``.
    between
        Time stamps of the call between which a server's stage lies, without ``_ns``. Stages without ``timing`` and
        ``between`` are computed in ``fenchel/server/telemetry/time_breakdown.py``.
    """

    column: str
    part: str
    timing: str = ""
    between: tuple[str, str] | None = None


STAGES = (
    CallStage("away_s", "away"),
    CallStage("queue_s", "queueing"),
    CallStage("serialisation_s", "serialisation"),
    CallStage("propagation_s", "propagation"),
    CallStage("broken_s", "away"),
    CallStage("client_queue_s", "queueing", "queue"),
    CallStage("client_decode_s", "coding", "decode"),
    CallStage("decrypt_s", "encryption", "decrypt"),
    CallStage("compute_s", "compute", "compute"),
    CallStage("encrypt_s", "encryption", "encrypt"),
    CallStage("client_encode_s", "coding", "encode"),
    CallStage("journal_s", "coding", "journal"),
    CallStage("handover_s", "queueing", "handover"),
    CallStage("held_s", "queueing"),
    CallStage("decode_s", "coding", between=("last_received", "decoded")),
    CallStage("take_s", "server", between=("decoded", "taken")),
    CallStage("waiting_s", "waiting", between=("taken", "ended")),
)
"""Stages in temporal order. Apart from a small remainder, their sum is ``total_s + take_s + waiting_s``."""

COLUMNS = tuple(stage.column for stage in STAGES)
CLIENT_STAGES = tuple(stage for stage in STAGES if stage.timing)
TAKING = COLUMNS[COLUMNS.index("decode_s") + 1 : COLUMNS.index("waiting_s")]
"""Columns of the stages after ``total_s`` in which the server processes a reply."""


def columns_of(part: str, stages: tuple[CallStage, ...] = STAGES) -> tuple[str, ...]:
    """Return the columns that belong to a part of time."""
    return tuple(stage.column for stage in stages if stage.part == part)

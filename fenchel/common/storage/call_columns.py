"""What the seconds of a call were spent on: the columns of ``calls.parquet`` that are parts of it.

A stage that is measured in addition is added here, beside the stamp that it needs: a field of ``proto.Timing``, or of
``Call`` on the server. The tables, the parts of time and the report follow from this module. The projection
(``fenchel/report/timeline.py``) names some stages, as it takes them apart. A stage of the server before the reply is
here is to be taken out of the way of the messages, too (``fenchel/server/telemetry/time_breakdown.py``).
"""

from __future__ import annotations

from typing import NamedTuple


class CallStage(NamedTuple):
    """A stretch of a call, in whose seconds nothing else happened.

    Attributes
    ----------
    part
        That it belongs to: a field of :class:`fenchel.common.storage.time_parts.TimeParts`.
    timing
        Of a client's: field of ``proto.Timing`` that has it, without ``_ns``.
    between
        Of the server's: the two stamps of the call that it lies between, without ``_ns``; ``None`` with no ``timing``:
        it is computed from several (``fenchel/server/telemetry/time_breakdown.py``).
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
"""In the order in which they follow each other; their sum is ``total_s + take_s + waiting_s``, but for a remainder."""

COLUMNS = tuple(stage.column for stage in STAGES)
CLIENT_STAGES = tuple(stage for stage in STAGES if stage.timing)
TAKING = COLUMNS[COLUMNS.index("decode_s") + 1 : COLUMNS.index("waiting_s")]
"""Columns of what the server does with a reply after ``total_s``, until it has entered the result."""


def columns_of(part: str, stages: tuple[CallStage, ...] = STAGES) -> tuple[str, ...]:
    """Return the columns that belong to a part."""
    return tuple(stage.column for stage in stages if stage.part == part)

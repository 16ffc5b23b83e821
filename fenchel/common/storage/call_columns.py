"""What the seconds of a call were spent on: the columns of ``calls.parquet`` that are parts of it.

Whoever measures another part adds it here; the server writes it, the report shows it, clients export their own.
"""

from __future__ import annotations

from typing import NamedTuple


class CallStage(NamedTuple):
    """A stretch of a call, in whose seconds nothing else happened."""

    column: str
    part: str  # that it belongs to, of :data:`fenchel.common.storage.round_columns.PARTS`
    timing: str = ""  # of a client's: field of ``proto.Timing`` that has it, without ``_ns``; empty: the server's own


STAGES = (
    CallStage("away_s", "away"),
    CallStage("queue_s", "queueing"),
    CallStage("serialisation_s", "network"),
    CallStage("propagation_s", "network"),
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
    CallStage("decode_s", "coding"),
    CallStage("take_s", "server"),
    CallStage("waiting_s", "waiting"),
)
"""In the order in which they follow each other; their sum is ``total_s + take_s + waiting_s``, but for a remainder."""

CLIENT_STAGES = tuple(stage for stage in STAGES if stage.timing)


def columns_of(part: str, stages: tuple[CallStage, ...] = STAGES) -> tuple[str, ...]:
    """Return the columns that belong to a part."""
    return tuple(stage.column for stage in stages if stage.part == part)

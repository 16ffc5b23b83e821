"""What the seconds of a call were spent on: the columns of ``calls.parquet`` that are parts of it.

Whoever measures another part adds it here; the server writes it, the report shows it, clients export their own.
"""

from __future__ import annotations

from typing import NamedTuple


class Stage(NamedTuple):
    """A stretch of a call, in whose seconds nothing else happened."""

    column: str
    part: str  # that it belongs to, of :data:`fenchel.common.storage.round_columns.PARTS`
    timing: str = ""  # of a client's: field of ``proto.Timing`` that has it, without ``_ns``; empty: the server's own


STAGES = (
    Stage("away_s", "away"),
    Stage("queue_s", "queueing"),
    Stage("serialisation_s", "network"),
    Stage("propagation_s", "network"),
    Stage("broken_s", "away"),
    Stage("client_queue_s", "queueing", "queue"),
    Stage("client_decode_s", "coding", "decode"),
    Stage("decrypt_s", "encryption", "decrypt"),
    Stage("compute_s", "compute", "compute"),
    Stage("encrypt_s", "encryption", "encrypt"),
    Stage("client_encode_s", "coding", "encode"),
    Stage("journal_s", "coding", "journal"),
    Stage("handover_s", "queueing", "handover"),
    Stage("held_s", "queueing"),
    Stage("decode_s", "coding"),
    Stage("take_s", "server"),
    Stage("waiting_s", "waiting"),
)
"""In the order in which they follow each other; their sum is ``total_s + take_s + waiting_s``, but for a remainder."""

CLIENT_STAGES = tuple(stage for stage in STAGES if stage.timing)


def columns_of(part: str, stages: tuple[Stage, ...] = STAGES) -> tuple[str, ...]:
    """Return the columns that belong to a part."""
    return tuple(stage.column for stage in stages if stage.part == part)

"""The columns of ``calls.parquet``, which has one row for each instruction (docs/run-folder.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from fenchel.common.storage.call_columns import COLUMNS
from fenchel.fleet.calls import Call
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.telemetry.time_breakdown import NO_TIMING, CallBreakdown, between

_MOST = (1 << 63) - 1  # largest count stored in the table: clients may report any number


class Column(NamedTuple):
    """A column of the table."""

    name: str
    type: pa.DataType
    value_of: Callable[[Call, CallBreakdown], Any]


def _stage(name: str) -> Column:
    return Column(name, pa.float64(), lambda call, costs: costs.stages[name])


def _count(name: str, value_of: Callable[[Call], int]) -> Column:
    return Column(name, pa.int64(), lambda call, costs: value_of(call))


def _text(name: str, value_of: Callable[[Call], str]) -> Column:
    return Column(name, pa.string(), lambda call, costs: value_of(call))


def _number(name: str, value_of: Callable[[Call], float]) -> Column:
    return Column(name, pa.float64(), lambda call, costs: value_of(call))


def _timing(call: Call) -> pb.Timing:
    return call.timing or NO_TIMING


def _at_client(call: Call, later_ns: int) -> float:
    """Convert nanoseconds since the client received the instruction to seconds since the server queued it; or nan."""
    timing, offset = call.timing, call.offset
    if timing is None or offset is None or not timing.received_unix_ns:
        return math.nan
    return (timing.received_unix_ns + offset.ns - call.queued_unix_ns + later_ns) / 1e9


_COLUMNS = (
    Column("round", pa.int32(), lambda call, costs: call.round),
    _text("phase", lambda call: call.phase),
    _text("kind", lambda call: pb.Kind.Name(call.kind).lower()),
    _text("client", lambda call: call.client),
    _count("sequence", lambda call: call.sequence),
    _text("outcome", lambda call: call.outcome),
    _number("queued_unix", lambda call: call.queued_unix_ns / 1e9),
    _count("bytes_down", lambda call: call.body_bytes),
    _count("bytes_up", lambda call: call.reply_bytes),
    _count("wire_down", lambda call: call.wire_down),
    _count("wire_up", lambda call: call.wire_up),
    _number("socket_down", lambda call: math.nan if call.socket_bytes is None else call.socket_bytes.down),
    _number("socket_up", lambda call: math.nan if call.socket_bytes is None else call.socket_bytes.up),
    Column("total_s", pa.float64(), lambda call, costs: costs.until_decoded),
    *map(_stage, COLUMNS),
    Column("network_s", pa.float64(), lambda call, costs: costs.network),
    _number("send_s", lambda call: between(call.first_sent_ns, call.last_sent_ns)),
    _number("client_receive_s", lambda call: _timing(call).receive_ns / 1e9),
    _number("receive_s", lambda call: between(call.first_received_ns, call.last_received_ns)),
    _number("arrived_s", lambda call: _at_client(call, 0)),
    _number("replied_s", lambda call: _at_client(call, _timing(call).answer_ns)),
    _count("encryptions", lambda call: min(_timing(call).encryptions, _MOST)),
    _count("decryptions", lambda call: min(_timing(call).decryptions, _MOST)),
    _number("clock_offset_s", lambda call: math.nan if call.offset is None else call.offset.ns / 1e9),
    _number("clock_error_s", lambda call: math.nan if call.offset is None else call.offset.error_ns / 1e9),
)

SCHEMA = pa.schema([(column.name, column.type) for column in _COLUMNS])


def row_of(call: Call) -> tuple[Any, ...]:
    """Return the row of an instruction, in the order of :data:`SCHEMA`."""
    costs = CallBreakdown.of(call)
    return tuple(column.value_of(call, costs) for column in _COLUMNS)

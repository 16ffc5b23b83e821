"""The disclosure record of a run: every kind of value that server and clients exchanged, its form and its readers.

The record is made where messages leave and arrive (:mod:`fenchel.server.stream.client_stream`), from the descriptors in
them, so it lists exactly the data that was sent. It holds names, types and sizes, and never a value.

The form of a value, such as noisy or sealed, cannot be seen in its bytes. For replies, the record contains the form
that the algorithm declares with ``returns`` (:class:`fenchel.common.wire.schema.ArraySpec`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from fenchel.common.errors import CheckpointError
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.uplink import Uplink
from fenchel.common.storage.store import write_text
from fenchel.common.wire.codecs import ValueInfo
from fenchel.common.wire.outline import Outline, outline
from fenchel.common.wire.phases import ACCEPT, BOX, EXCHANGE
from fenchel.common.wire.schema import Form
from fenchel.fleet.calls import Call
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.disclosure.entries import Direction, DisclosureEntry, Head
from fenchel.server.disclosure.exporters import ExporterEntry
from fenchel.server.disclosure.field_presence import presence
from fenchel.server.privacy_budget import PrivacyBudget

UNASKED = "(unasked)"
"""Phase name for replies that answer no request that the server still knows."""
UNDECLARED = "(undeclared)"
"""Name for values outside the schema, so that invented names cannot make the record grow."""
_SEALED = frozenset(name for name, spec in BOX.items() if getattr(spec, "form", "") == "sealed")
_KEPT_BYTES = 4096  # largest size in bytes of a reply's descriptors that are kept for comparison with the next reply
_KEYS = 8  # largest number of key ids listed for each name: a faulty client could send arbitrarily many


@dataclass(frozen=True)
class _Noted:
    """A recorded message, kept because most later messages have the same descriptors."""

    content: bytes | Outline
    forms: Mapping[str, Form]
    entries: tuple[DisclosureEntry, ...]

    def count(self, call: Call) -> None:
        """Count one more message with these descriptors."""
        for entry in self.entries:
            entry.count(call.client, call.round)


@dataclass
class DisclosureRecord:
    """Disclosure record of one run.

    Attributes
    ----------
    path
        Path of the JSON file.
    run
        Id of the run.
    privacy
        Section ``differential_privacy`` of the settings, if there is one.
    uplink
        Section ``uplink`` of the settings, which can require noise, too.
    privacy_budget
        Privacy budget of the run under differential privacy, otherwise ``None``.
    """

    path: Path
    run: str
    privacy: DifferentialPrivacy | None = None
    uplink: Uplink = field(default_factory=Uplink)
    privacy_budget: PrivacyBudget | None = None
    _exporters: list[ExporterEntry] = field(default_factory=list)
    _kinds: dict[tuple[object, ...], DisclosureEntry] = field(default_factory=dict)
    _heads: dict[str, Head] = field(default_factory=dict)
    _keys: dict[tuple[str, Direction, str], set[str]] = field(default_factory=dict)
    _clients: set[str] = field(default_factory=set)
    _news: bool = True
    _unseen: dict[str, dict[str, Callable[[Message], object]]] = field(default_factory=dict)
    _noted: dict[tuple[str, int, str], _Noted] = field(default_factory=dict)
    """Last recorded message by phase, kind and client; for instructions the client is empty."""

    # Methods that the transport calls

    def opened(self, client: str, fields: Iterable[str]) -> None:
        """Record a new stream of a client, with the fields of the call's metadata."""
        self._clients.add(client)
        self._head("Work", "up", fields)

    def head(self, direction: Direction, message: Message) -> None:
        """Record the head of a message."""
        name = message.DESCRIPTOR.name
        unseen = self._unseen.get(name)
        if unseen is None:
            unseen = self._unseen[name] = dict(presence(cast("Descriptor", message.DESCRIPTOR)))
        # A field already in the record need not be tested again.
        news = [each for each, of in unseen.items() if of(message)]
        for each in news:
            del unseen[each]
        self._head(name, direction, news)

    def shown(self, *exporters: ExporterEntry) -> None:
        """Record telemetry exporters of the run."""
        for exporter in exporters:
            if exporter not in self._exporters:
                self._exporters.append(exporter)
                self._news = True

    def sent(self, call: Call, head: pb.Instruction, payload: bytes, *, goes_on: bool = False) -> None:
        """Record an instruction that is about to be sent.

        Parameters
        ----------
        call
            Call of the instruction.
        head
            Head of the message.
        payload
            Encoded descriptors of the message's arrays, the same object for all receivers of a broadcast.
        goes_on
            True if the transmission resumes where it broke off. The arrays were then recorded before.
        """
        self.head("down", head)
        if goes_on:
            return
        place = call.phase, call.kind, ""
        noted = self._noted.get(place)
        if noted is None or noted.content != payload:
            entries = []
            for part in outline(pb.Payload.FromString(payload), sys.maxsize, sys.maxsize).parts:
                found = part.description
                form: Form = "sealed" if call.phase == ACCEPT and found.name in _SEALED else "clear"
                entries.append(self._entry(call, "down", found, form))
            noted = self._noted[place] = _Noted(payload, {}, tuple(entries))
        noted.count(call)

    def received(self, client: str, reply: pb.Reply, content: Outline, call: Call | None) -> None:
        """Record a reply that has begun to arrive, even if it will not count.

        Parameters
        ----------
        client
            Id of the client.
        reply
            Head of the message.
        content
            Descriptors of the reply's values.
        call
            Call that the reply answers; ``None``: no call that the server still knows.
        """
        self.head("up", reply)
        if reply.resume:
            return  # the first part of the interrupted reply was recorded on its arrival
        forms = {} if call is None or call.request is None else call.request.forms
        known = call or Call(
            client=client, sequence=reply.sequence, base=0, phase=UNASKED, round=0, kind=pb.KIND_UNSPECIFIED, body=None
        )
        place = known.phase, known.kind, client
        noted = self._noted.get(place)
        if noted is None or noted.content != content or noted.forms != forms:
            entries = []
            for part in content.parts:
                found = part.description
                if found.name not in forms:
                    found = found._replace(name=UNDECLARED, key="")
                entries.append(self._entry(known, "up", found, forms.get(found.name, "clear")))
            noted = _Noted(content, forms, tuple(entries))
            if reply.payload.ByteSize() <= _KEPT_BYTES:
                self._noted[place] = noted
        noted.count(known)

    def _head(self, message: str, direction: Direction, fields: Iterable[str]) -> None:
        head = self._heads.get(message)
        if head is None:
            head = self._heads[message] = Head(message, direction)
        before = len(head.fields)
        head.fields.update(fields)
        head.times += 1
        self._news = self._news or len(head.fields) > before

    def _entry(self, call: Call, direction: Direction, found: ValueInfo, declared: Form) -> DisclosureEntry:
        """Return the entry for one value of a message, and extend the entry's ranges to include the value."""
        form = "ciphertext" if found.content == "ciphertexts" else declared
        name = found.name
        if call.phase in EXCHANGE and "/" in name:
            # one entry for all clients, each of which has such a value
            name = f"*/{name.partition('/')[2]}"
        keys = self._keys.setdefault((call.phase, direction, name), set())
        if len(keys) < _KEYS:
            keys.add(found.key)
        key, sides = found.key if found.key in keys else "", len(found.shape)
        place = (call.phase, call.kind, direction, name, found.content, found.dtype, form, key, sides)
        kind = self._kinds.get(place)
        if kind is None:
            word = pb.Kind.Name(call.kind).lower() if call.kind else ""
            kind = self._kinds[place] = DisclosureEntry(
                call.phase, word, direction, name, found.content, found.dtype, form, key, call.round, call.round
            )
            self._news = True
        kind.widen(found)
        return kind

    # File of the record

    def save_news(self) -> None:
        """Write the file if the record has entries or head fields that are not in it yet."""
        if self._news:
            self.save()

    def save(self) -> None:
        """Write the file atomically."""
        write_text(self.path, _lines(self.to_json()))
        self._news = False

    def to_json(self) -> dict[str, Any]:
        """Return the contents of the file (docs/run-folder.md)."""
        return {
            "run": self.run,
            "clients": sorted(self._clients),
            "messages": [self._told(kind) for kind in self._kinds.values()],
            "heads": [vars(head) | {"fields": sorted(head.fields)} for head in self._heads.values()],
            "noise": self._noise(),
            "exporters": [exporter.to_json() for exporter in self._exporters],
        }

    def _told(self, kind: DisclosureEntry) -> dict[str, Any]:
        includes_all = kind.clients >= self._clients
        named = "all" if includes_all else sorted(kind.clients)
        return vars(kind) | {"clients": named, "readers": kind.readers}

    def _noise(self) -> dict[str, Any] | None:
        """Return the mechanism of the clients' noise, and their privacy loss by groups of equal noise."""
        if self.privacy is None:
            plain = self.uplink.noise
            return None if plain is None else {"mechanism": "uplink.noise", "standard_deviation": plain}
        return {
            "mechanism": self.privacy.mechanism,
            "delta": self.privacy.delta,
            "groups": [] if self.privacy_budget is None else self.privacy_budget.groups(),
        }

    def resume(self, members: Collection[str]) -> None:
        """Continue the record of a resumed run.

        Parameters
        ----------
        members
            Ids of the run's clients.

        Raises
        ------
        CheckpointError
            If the file cannot be read.
        """
        if not self.path.exists():
            return  # the run began with a version without disclosure records
        try:
            earlier = json.loads(self.path.read_text())
            self._clients = {*earlier["clients"], *members}
            for entry in earlier["messages"]:
                del entry["readers"]
                whom = set(earlier["clients"]) if entry["clients"] == "all" else set(entry["clients"])
                kind = DisclosureEntry(**entry | {"clients": whom})
                self._kinds[_place(kind)] = kind
                self._keys.setdefault((kind.phase, kind.direction, kind.name), set()).add(kind.key)
            for entry in earlier["heads"]:
                self._heads[entry["message"]] = Head(**entry | {"fields": set(entry["fields"])})
            for entry in earlier.get("exporters", ()):
                self.shown(ExporterEntry.recorded(entry))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"the disclosure record cannot be read ({error}), and would begin anew without it; restore the "
                "file, or move it away to accept that",
                source=self.path,
            ) from None


def _lines(account: Mapping[str, Any]) -> str:
    """Return the record as JSON with a line for each entry, which is easy to read and to compare between runs."""
    parts = []
    for name, value in account.items():
        entries = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        if entries is None:
            parts.append(f'"{name}": {json.dumps(value)}')
        else:
            parts.append(f'"{name}": [\n' + ",\n".join("  " + json.dumps(each) for each in entries) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _place(kind: DisclosureEntry) -> tuple[object, ...]:
    code = pb.Kind.Value(kind.kind.upper()) if kind.kind else pb.KIND_UNSPECIFIED
    return (kind.phase, code, kind.direction, kind.name, kind.content, kind.dtype, kind.form, kind.key, len(kind.shape))

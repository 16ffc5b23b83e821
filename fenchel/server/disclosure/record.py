"""What each party of a run could see: every kind of message that crossed, and in what form.

The account is kept where messages leave and arrive (:mod:`fenchel.server.stream.client_stream`), from the
descriptors that travel with them, so it lists what crossed and nothing else. It holds names, types and sizes;
never a value.

What a descriptor cannot tell, because it does not show in bytes, is the word of the algorithm: ``form`` of what it
declared with ``returns`` (:class:`fenchel.common.wire.schema.ArraySpec`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from fenchel.common.errors import CheckpointError
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.uplink import Uplink
from fenchel.common.storage.store import write_text
from fenchel.common.wire.codecs import Description
from fenchel.common.wire.outline import Outline, outline
from fenchel.common.wire.phases import ACCEPT, BOX, EXCHANGE
from fenchel.common.wire.schema import Form
from fenchel.fleet.calls import Call
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.disclosure.entries import Direction, DisclosureEntry, Head
from fenchel.server.disclosure.exporters import Exporter
from fenchel.server.disclosure.field_presence import presence
from fenchel.server.privacy_budget import PrivacyBudget

UNASKED = "(unasked)"
"""Stands for the phase of a reply that answers no question the server remembers."""
UNDECLARED = "(undeclared)"
"""Stands for the names of values that nobody asked for, so that nobody can make the account grow."""
_SEALED = frozenset(name for name, spec in BOX.items() if getattr(spec, "form", "") == "sealed")
_KEPT_BYTES = 4096  # replies' descriptors up to here are compared with the next
_KEYS = 8  # of ciphertexts of one name: a run has one, and what a client makes up is not worth more


@dataclass(frozen=True)
class _Noted:
    """A message that was noted; most of those that follow announce the same."""

    content: bytes | Outline
    forms: Mapping[str, Form]
    entries: tuple[DisclosureEntry, ...]

    def count(self, call: Call) -> None:
        """Count one more of its kind."""
        for entry in self.entries:
            entry.count(call.client, call.round)


@dataclass
class DisclosureRecord:
    """The account of one run.

    spending: what the uploads cost the clients, under differential privacy.

    Attributes
    ----------
    path
        Where it is kept: a JSON file.
    run
        The run's id.
    privacy, uplink
        From the settings: what noise the clients add.
    """

    path: Path
    run: str
    privacy: DifferentialPrivacy | None = None
    uplink: Uplink = field(default_factory=Uplink)
    privacy_budget: PrivacyBudget | None = None
    _exporters: list[Exporter] = field(default_factory=list)
    _kinds: dict[tuple[object, ...], DisclosureEntry] = field(default_factory=dict)
    _heads: dict[str, Head] = field(default_factory=dict)
    _keys: dict[tuple[str, Direction, str], set[str]] = field(default_factory=dict)
    _clients: set[str] = field(default_factory=set)
    _news: bool = True
    _unseen: dict[str, dict[str, Callable[[Message], object]]] = field(default_factory=dict)
    _noted: dict[tuple[str, int, str], _Noted] = field(default_factory=dict)
    """The last of each phase, kind and client that it came from; for instructions the client is empty."""

    # What the transport tells

    def opened(self, client: str, fields: Iterable[str]) -> None:
        """Note that a client opened a stream, and what the call itself told of it."""
        self._clients.add(client)
        self._head("Work", "up", fields)

    def head(self, direction: Direction, message: Message) -> None:
        """Note a message without arrays, or the rest of one that has some."""
        name = message.DESCRIPTOR.name
        unseen = self._unseen.get(name)
        if unseen is None:
            unseen = self._unseen[name] = dict(presence(cast("Descriptor", message.DESCRIPTOR)))
        # Of a field that was set once, nobody need know again.
        news = [each for each, of in unseen.items() if of(message)]
        for each in news:
            del unseen[each]
        self._head(name, direction, news)

    def shown(self, *exporters: Exporter) -> None:
        """Note where the run can be watched."""
        for exporter in exporters:
            if exporter not in self._exporters:
                self._exporters.append(exporter)
                self._news = True

    def sent(self, call: Call, head: pb.Instruction, payload: bytes, *, goes_on: bool = False) -> None:
        """Note that an instruction is about to leave.

        Parameters
        ----------
        payload
            The descriptor of its arrays, as it travels; the same object for all receivers of a broadcast.
        goes_on
            Whether the arrays go on where they broke off: then they were noted before.
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
        """Note that a reply has begun to arrive, whether or not it will count.

        Parameters
        ----------
        call
            What it answers; ``None``: nothing that the server remembers.
        """
        self.head("up", reply)
        if reply.resume:
            return  # it goes on where it broke off, and was noted then
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

    def _entry(self, call: Call, direction: Direction, found: Description, declared: Form) -> DisclosureEntry:
        """Return the entry for one value of a message, with the sizes of this one in it."""
        form = "ciphertext" if found.content == "ciphertexts" else declared
        name = found.name
        if call.phase in EXCHANGE and "/" in name:
            name = f"*/{name.partition('/')[2]}"  # one for each client, alike
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

    # The file

    def save_news(self) -> None:
        """Write the file if something of a new kind has crossed since it was written."""
        if self._news:
            self.save()

    def save(self) -> None:
        """Write the file, so that it is at every moment either the old one or the new one."""
        write_text(self.path, _lines(self.to_json()))
        self._news = False

    def to_json(self) -> dict[str, Any]:
        """Return the account as it is kept (docs/run-folder.md)."""
        return {
            "run": self.run,
            "clients": sorted(self._clients),
            "messages": [self._told(kind) for kind in self._kinds.values()],
            "heads": [asdict(head) | {"fields": sorted(head.fields)} for head in self._heads.values()],
            "noise": self._noise(),
            "exporters": [exporter.to_json() for exporter in self._exporters],
        }

    def _told(self, kind: DisclosureEntry) -> dict[str, Any]:
        everybody = kind.clients >= self._clients
        named = "all" if everybody else sorted(kind.clients)
        return asdict(kind) | {"clients": named, "readers": kind.readers}

    def _noise(self) -> dict[str, Any] | None:
        """Describe the noise that clients add, and what uploads with it have cost them, by groups of equal noise."""
        if self.privacy is None:
            plain = self.uplink.noise
            return None if plain is None else {"mechanism": "uplink.noise", "standard_deviation": plain}
        return {
            "mechanism": self.privacy.mechanism,
            "delta": self.privacy.delta,
            "groups": [] if self.privacy_budget is None else self.privacy_budget.groups(),
        }

    def resume(self, members: Collection[str]) -> None:
        """Go on with the account of a run that is resumed."""
        if not self.path.exists():
            return  # begun by a version that kept none
        try:
            told = json.loads(self.path.read_text())
            self._clients = {*told["clients"], *members}
            for entry in told["messages"]:
                del entry["readers"]
                whom = set(told["clients"]) if entry["clients"] == "all" else set(entry["clients"])
                kind = DisclosureEntry(**entry | {"clients": whom})
                self._kinds[_place(kind)] = kind
                self._keys.setdefault((kind.phase, kind.direction, kind.name), set()).add(kind.key)
            for entry in told["heads"]:
                self._heads[entry["message"]] = Head(**entry | {"fields": set(entry["fields"])})
            for entry in told.get("exporters", ()):
                self.shown(Exporter(entry["exporter"], entry["address"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"cannot be read ({error}); without it the account of what was disclosed would begin "
                "anew. Put it back, or move it away to accept that",
                source=self.path,
            ) from None


def _lines(account: Mapping[str, Any]) -> str:
    """Return the account as JSON, with a line for each entry of a list: for people, and for comparing runs."""
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

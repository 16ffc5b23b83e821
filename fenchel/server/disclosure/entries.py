"""Entries of the disclosure record: one for each kind of value and of message head that server and clients exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fenchel.common.wire.codecs import ValueInfo

Direction: TypeAlias = Literal["up", "down"]
"""Direction of a message: ``up`` is from a client to the server."""

_READERS: Mapping[tuple[str, str], str] = {
    ("up", "clear"): "the server",
    ("up", "noisy"): "the server",
    ("up", "pseudonyms"): "the server; the names behind them only clients",
    ("up", "ciphertext"): "anyone who has the clients' private key",
    ("up", "sealed"): "the one client that each box is sealed for",
    ("down", "clear"): "the server and the clients it went to",
    ("down", "ciphertext"): "the clients it went to",
    ("down", "sealed"): "the clients it went to",
}


@dataclass
class DisclosureEntry:
    """One kind of array or number that was sent.

    Attributes
    ----------
    phase
        Name of the phase.
    kind
        Kind of the instruction: ``ask``, ``tell`` or ``inspect``.
    direction
        Direction; ``up`` is from a client to the server.
    name
        Name of the value in the message.
    content
        Encoding: ``dense``, ``sparse``, ``scalar`` or ``ciphertexts``.
    dtype
        Dtype of an array; ``real``, ``integer``, ``boolean`` or ``text`` for a scalar; empty for ciphertexts.
    form
        Form in which the value discloses something: ``clear``, ``noisy``, ``pseudonyms``, ``ciphertext`` or ``sealed``.
    key
        Id of the public key of ciphertexts, in hexadecimal digits.
    first_round, last_round
        Numbers of the first and last round in which such a value was sent.
    shape
        Smallest and largest length of each axis; for ciphertexts the number of encrypted values.
    entries
        Smallest and largest number of stored entries of a sparse vector.
    bytes
        Smallest and largest size of the value in bytes, without padding; 0 for scalars, which are part of the head.
    additions
        Smallest and largest number of fresh ciphertext vectors in a sum; 0: encrypted zeros, which anyone can make.
    clients
        Ids of the clients that sent it (up) or received it (down).
    times
        Number of transmissions. A message that was sent again from its beginning counts again.
    """

    phase: str
    kind: str
    direction: Literal["up", "down"]
    name: str
    content: str
    dtype: str
    form: str
    key: str
    first_round: int
    last_round: int
    shape: list[list[int]] = field(default_factory=list)
    entries: list[int] | None = None
    bytes: list[int] | None = None
    additions: list[int] | None = None
    clients: set[str] = field(default_factory=set)
    times: int = 0

    @property
    def readers(self) -> str:
        """Parties that could read the value. All others saw at most its size."""
        return _READERS.get((self.direction, self.form), "the server")

    def widen(self, found: ValueInfo) -> None:
        """Extend the ranges of shape, bytes, entries and additions to include the value described by ``found``."""
        if self.bytes is None:
            self.shape = [[side, side] for side in found.shape]
            self.bytes = [found.bytes, found.bytes]
            self.entries = None if found.entries is None else [found.entries, found.entries]
            self.additions = None if found.additions is None else [found.additions, found.additions]
        for span, side in zip(self.shape, found.shape, strict=True):
            _widen(span, side)
        _widen(self.bytes, found.bytes)
        if self.entries is not None and found.entries is not None:
            _widen(self.entries, found.entries)
        if self.additions is not None and found.additions is not None:
            _widen(self.additions, found.additions)

    def count(self, client: str, t: int) -> None:
        """Count one more transmission to or from a client in round ``t``."""
        self.clients.add(client)
        if t < self.first_round:
            self.first_round = t
        elif t > self.last_round:
            self.last_round = t
        self.times += 1


@dataclass
class Head:
    """One kind of head: the part of a message without arrays.

    Attributes
    ----------
    message
        Name of the message type in ``fenchel.proto``; ``Work`` stands for the metadata of a stream.
    direction
        Direction; ``up`` is from a client to the server.
    fields
        Names of the fields that were ever set, with dots for nested ones, such as ``shard.samples``.
    times
        Number of transmissions.
    """

    message: str
    direction: Literal["up", "down"]
    fields: set[str] = field(default_factory=set)
    times: int = 0


def _widen(span: list[int], number: int) -> None:
    """Extend a range ``[smallest, largest]`` to include a number, in place."""
    if number < span[0]:
        span[0] = number
    elif number > span[1]:
        span[1] = number

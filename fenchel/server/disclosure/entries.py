"""What is written of each kind of array, number and head that crossed between the server and the clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fenchel.common.wire.codecs import Description

Direction: TypeAlias = Literal["up", "down"]
"""Up: from a client to the server."""

_READERS: Mapping[tuple[str, str], str] = {
    ("up", "clear"): "the server",
    ("up", "noisy"): "the server",
    ("up", "pseudonyms"): "the server; the names behind them only clients",
    ("up", "ciphertext"): "nobody without the clients' private key",
    ("up", "sealed"): "the one client that each box is sealed for",
    ("down", "clear"): "the server and the clients it went to",
    ("down", "ciphertext"): "the clients it went to",
    ("down", "sealed"): "the clients it went to",
}


@dataclass
class DisclosureEntry:
    """One kind of array or number that crossed.

    Attributes
    ----------
    phase
        Phase, kind, direction, name: which message, which way (``up``: from a client to the server), and what in it;
        ``kind`` is ``ask``, ``tell`` or ``inspect``.
    content
        ``dense``, ``sparse``, ``scalar`` or ``ciphertexts``.
    dtype
        Of its entries; of a scalar ``real``, ``integer``, ``boolean`` or ``text``; empty for ciphertexts.
    form
        As whom it could tell something: ``clear``, ``noisy``, ``pseudonyms``, ``ciphertext`` or ``sealed``.
    key
        Of ciphertexts: the id of the public key, in hexadecimal digits.
    first_round
        first_round, last_round, times: when, and how often in all. A message that was sent again from its beginning
        counts again.
    shape
        Smallest and largest length of each side; for ciphertexts the number of encrypted values.
    entries
        Of a sparse vector: smallest and largest number of entries that were given.
    bytes
        Smallest and largest size in the message, without padding; 0 for scalars, which are part of the head.
    additions
        Of ciphertexts: of how few and how many fresh vectors one was the sum; 0: zeros that anybody can encrypt.
    clients
        Who sent it (up) or whom it went to (down).
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
        """Who could read it: all others who carried it saw its size alone."""
        return _READERS.get((self.direction, self.form), "the server")

    def widen(self, found: Description) -> None:
        """Take the sizes of one more of this kind in."""
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
        """Count one more of this kind."""
        self.clients.add(client)
        if t < self.first_round:
            self.first_round = t
        elif t > self.last_round:
            self.last_round = t
        self.times += 1


@dataclass
class Head:
    """One kind of head: the part of a message that is no array.

    Attributes
    ----------
    message
        Its name in ``fenchel.proto``; ``Work`` stands for the metadata of a stream.
    fields
        Those that were ever set, of parts in a part with a dot: ``shard.samples``.
    times
        How many crossed.
    """

    message: str
    direction: Literal["up", "down"]
    fields: set[str] = field(default_factory=set)
    times: int = 0


def _widen(span: list[int], number: int) -> None:
    """Let ``[smallest, largest]`` have one more number in it."""
    if number < span[0]:
        span[0] = number
    elif number > span[1]:
        span[1] = number

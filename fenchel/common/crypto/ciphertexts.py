"""Vectors under Paillier encryption, as they travel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import PayloadError

Buffer: TypeAlias = bytes | memoryview
KEY_ID_BYTES = 16
LARGEST = (1 << 63) - 1
"""What a size, an index or an integer may be."""


@dataclass(frozen=True)
class Ciphertexts:
    """A vector under Paillier encryption, as it travels; ``CipherVector`` computes on it.

    Attributes
    ----------
    key_id
        16 bytes that name the public key.
    layout
        How the values lie in the plaintexts.
    count
        How many values there are.
    additions
        How many fresh vectors were added up; 0 for the trivial encryption of zeros.
    ciphertext_bytes
        Length of one ciphertext.
    data
        ``layout.ciphertexts(count)`` ciphertexts one after the other, big-endian, ``ciphertext_bytes`` each.
    """

    key_id: bytes
    layout: Layout
    count: int
    additions: int
    ciphertext_bytes: int
    data: Buffer = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes that ``data`` must have."""
        return self.layout.ciphertexts(self.count) * self.ciphertext_bytes

    def check(self) -> None:
        """Refuse numbers that contradict each other. The data is not looked at.

        Raises
        ------
        PayloadError
            The key's name, the layout, the count or the additions cannot be.
        """
        layout = self.layout
        if len(self.key_id) != KEY_ID_BYTES:
            raise PayloadError(f"ciphertexts name their key by {len(self.key_id)} bytes, not {KEY_ID_BYTES}")
        # A ciphertext is a number modulo n^2, and n is two bits longer than all slots together.
        if self.ciphertext_bytes * 8 < 2 * layout.slot_bits * layout.slots:
            raise PayloadError(f"ciphertexts of {self.ciphertext_bytes} bytes have no room for {layout}")
        most = min(layout.max_additions, LARGEST)
        if not 0 <= self.additions <= most:
            raise PayloadError(
                f"ciphertexts are declared to be a sum of {self.additions} vectors, and {layout} have room for {most}"
            )
        if not 0 <= self.count <= LARGEST or self.size > LARGEST:
            raise PayloadError(f"ciphertexts hold {self.count} values, which is more than there can be")

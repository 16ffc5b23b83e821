"""Serialised form of vectors under Paillier encryption."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import PayloadError

Buffer: TypeAlias = bytes | memoryview
KEY_ID_BYTES = 16
LARGEST = (1 << 63) - 1
"""Largest size, index or integer in a message."""


@dataclass(frozen=True)
class Ciphertexts:
    """Serialised vector under Paillier encryption. ``CipherVector`` is the form for computations.

    Attributes
    ----------
    key_id
        Id of the public key, 16 bytes.
    layout
        Layout of the values in the plaintexts.
    count
        Number of values.
    additions
        Number of fresh vectors of which this is the sum; 0 for the trivial encryption of zeros.
    ciphertext_bytes
        Length of one ciphertext in bytes.
    data
        Concatenation of ``layout.ciphertexts(count)`` ciphertexts, big-endian, ``ciphertext_bytes`` each.
    """

    key_id: bytes
    layout: Layout
    count: int
    additions: int
    ciphertext_bytes: int
    data: Buffer = field(repr=False)

    @property
    def size(self) -> int:
        """Required length of ``data`` in bytes."""
        return self.layout.ciphertexts(self.count) * self.ciphertext_bytes

    def copy(self) -> Ciphertexts:
        """Return a copy with data of its own, which does not keep a message in memory."""
        return replace(self, data=bytes(self.data))

    def check(self) -> None:
        """Check that the numbers are consistent, without examining the data.

        Raises
        ------
        PayloadError
            If the key's id, the layout, the count or the additions are impossible.
        """
        layout = self.layout
        if len(self.key_id) != KEY_ID_BYTES:
            raise PayloadError(f"the id of the ciphertexts' key has {len(self.key_id)} bytes, expected {KEY_ID_BYTES}")
        # A ciphertext is a number modulo n^2, and n is at least two bits longer than all slots together.
        if self.ciphertext_bytes * 8 < 2 * layout.slot_bits * layout.slots:
            raise PayloadError(f"ciphertexts of {self.ciphertext_bytes} bytes are too short for {layout}")
        most = min(layout.max_additions, LARGEST)
        if not 0 <= self.additions <= most:
            raise PayloadError(
                f"the ciphertexts are declared as a sum of {self.additions} vectors, but {layout} allow at most {most}"
            )
        if not 0 <= self.count <= LARGEST or self.size > LARGEST:
            raise PayloadError(
                f"the ciphertexts hold {self.count} values in {self.size} bytes; expected 0 to {LARGEST:,} of each"
            )

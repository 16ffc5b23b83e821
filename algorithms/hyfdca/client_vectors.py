"""Aligned vectors as a client sends and receives them: in the clear, or encrypted."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fenchel.algorithms.hyfdca.settings import entries_of
from fenchel.client.paillier.cipher import Paillier
from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError, OutOfRangeError, PayloadError
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.values import Value

log = logging.getLogger("fenchel.client")


@dataclass(frozen=True)
class Clear:
    """The entries of an aligned vector as they are."""

    sizes: Indices  # entries in each block, shape (B,)

    def seal(self, values: Vector, blocks: Indices | None = None) -> Value:
        """Return what is sent: the values of all the client's blocks, or of some, as they are."""
        return values

    def open(self, value: Value, blocks: Indices | None = None) -> Vector:
        """Return a copy of what :meth:`seal` was given; PayloadError if it is encrypted, or not as many values."""
        if not isinstance(value, np.ndarray):
            raise PayloadError(
                f"an encrypted vector arrived, but this run is not encrypted (privacy: none){SAME_VERSION}"
            )
        wanted = int((self.sizes if blocks is None else self.sizes[blocks]).sum())
        if value.shape != (wanted,):
            raise PayloadError(f"an array of shape {value.shape} arrived, expected ({wanted},){SAME_VERSION}")
        return value.copy()


@dataclass(frozen=True)
class Encrypted:
    """One ciphertext for each block, its values in the first slots."""

    sizes: Indices  # entries in each block, shape (B,), none larger than ``layout.slots``
    layout: Layout  # how values lie in a ciphertext
    cipher: Paillier  # encrypts and decrypts
    what: str = "values"  # what the values are, and the setting that bounds them, for errors

    def seal(self, values: Vector, blocks: Indices | None = None) -> Value:
        """Return fresh ciphertexts, zeros in the slots that a block leaves over."""
        padded = np.zeros((self._count(blocks), self.layout.slots))
        padded[self._filled(blocks)] = values
        try:
            return self.cipher.encrypt(padded.reshape(-1), self.layout).to_wire()
        except EncryptionError as error:
            # An error's text reaches the server, which must not learn the value.
            log.error("%s: %s", self.what, error)
            finite = bool(np.isfinite(values).all())
            problem = (
                f"beyond {self.layout.largest:g}, the largest magnitude that can be encrypted; raise that range"
                if finite
                else "not finite; the steps may be too long"
            )
            raise OutOfRangeError(
                f"{self.what}: a value is {problem} (this client's log has it)", diverged=not finite
            ) from None

    def open(self, value: Value, blocks: Indices | None = None) -> Vector:
        """Return the decrypted entries."""
        if not isinstance(value, Ciphertexts):
            raise PayloadError(
                f"a plain array arrived where this run has encrypted ones (privacy: paillier){SAME_VERSION}"
            )
        vector = CipherVector.from_wire(value, self.cipher.key.public)
        if vector.layout != self.layout or len(vector.ciphertexts) != self._count(blocks):
            raise PayloadError(
                f"{len(vector.ciphertexts)} ciphertexts of {vector.layout} arrived, expected "
                f"{self._count(blocks)} of {self.layout}{SAME_VERSION}"
            )
        try:
            values = self.cipher.decrypt(vector).reshape(-1, self.layout.slots)
        except EncryptionError as error:
            # The server chose the ciphertexts: which slot overflowed would tell it more of what is in them.
            log.error("%s: %s", self.what, error)
            raise self._overflow() from None
        filled = self._filled(blocks)
        if values[~filled].any():
            raise self._overflow()
        return values[filled]

    def _overflow(self) -> EncryptionError:
        return EncryptionError(
            f"{self.what}: an encrypted sum has grown out of its range, or is none of this run; raise the ranges in "
            "algorithm.encryption, or damp the steps"
        )

    def _count(self, blocks: Indices | None) -> int:
        return len(self.sizes) if blocks is None else len(blocks)

    def _filled(self, blocks: Indices | None) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        sizes = self.sizes if blocks is None else self.sizes[blocks]
        filled: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = np.arange(self.layout.slots) < sizes[:, None]
        return filled


Envelope: TypeAlias = Clear | Encrypted
"""How the entries of an aligned vector travel; ``enc(.)`` of the specification."""


def entries(sizes: Indices, blocks: Indices | None) -> Indices | slice:
    """Return the places of some blocks' entries, or a slice of everything."""
    return slice(None) if blocks is None else entries_of(sizes, blocks)

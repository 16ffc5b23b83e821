"""Encoding of a client's aligned vectors in messages, in plaintext or encrypted."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.hyfdca.client_alignment import check_blocks
from fenchel.algorithms.hyfdca.settings import entries_of
from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.cipher import Cipher
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError, OutOfRangeError, PayloadError
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.values import Value

log = logging.getLogger("fenchel.client")


@dataclass(frozen=True)
class Clear:
    """Plaintext encoding of an aligned vector.

    Attributes
    ----------
    sizes
        Number of entries in each block, shape (B,).
    """

    sizes: Indices

    def seal(self, values: Vector, blocks: Indices | None = None) -> Value:
        """Encode the client's entries, or those of some of its blocks.

        Raises
        ------
        PayloadError
            If the client has no such blocks.
        OutOfRangeError
            If an encrypted encoding cannot represent a value.
        """
        if blocks is None:
            return self._sent(values, self.sizes)
        check_blocks(blocks, len(self.sizes))
        return self._sent(values[entries_of(self.sizes, blocks)], self.sizes[blocks])

    def open(self, value: Value, blocks: Indices | None = None, others: Vector | None = None) -> Vector:
        """Decode a received value into a new vector of all the client's entries.

        Entries outside ``blocks`` are taken from ``others``, or are 0.

        Raises
        ------
        PayloadError
            If the value has another encoding, shape or layout, or the client has no such blocks.
        EncryptionError
            If decrypted numbers are out of range, or unused slots are not zero.
        """
        if blocks is None:
            return self._arrived(value, self.sizes)
        check_blocks(blocks, len(self.sizes))
        opened = np.zeros(int(self.sizes.sum())) if others is None else others.copy()
        opened[entries_of(self.sizes, blocks)] = self._arrived(value, self.sizes[blocks])
        return opened

    def _sent(self, values: Vector, sizes: Indices) -> Value:
        return values

    def _arrived(self, value: Value, sizes: Indices) -> Vector:
        if not isinstance(value, np.ndarray):
            raise PayloadError(f"the vector is encrypted, but this run is not (privacy: none){SAME_VERSION}")
        if value.shape != (sizes.sum(),):
            raise PayloadError(f"the array has shape {value.shape}, expected ({sizes.sum()},){SAME_VERSION}")
        return value.copy()


@dataclass(frozen=True)
class Encrypted(Clear):
    """Encrypted encoding, with one ciphertext for each block of at most ``layout.slots`` entries.

    Attributes
    ----------
    layout
        Layout of values in a ciphertext.
    cipher
        Cryptosystem with the private key.
    what
        Kind of the values and the setting that bounds them, for errors.
    """

    layout: Layout
    cipher: Cipher
    what: str = "values"

    def _sent(self, values: Vector, sizes: Indices) -> Value:
        """Return fresh ciphertexts, with zeros in unused slots."""
        padded = np.zeros((len(sizes), self.layout.slots))
        padded[np.arange(self.layout.slots) < sizes[:, None]] = values
        try:
            return self.cipher.encrypt(padded.reshape(-1), self.layout).to_wire()
        except EncryptionError as error:
            # Only the client's log shows the value: the server receives the error's text and must not learn the value.
            log.error("%s: %s", self.what, error)
            finite = bool(np.isfinite(values).all())
            problem = (
                f"beyond {self.layout.largest:g}, the largest magnitude that can be encrypted; raise that range"
                if finite
                else "not finite; the steps may be too long"
            )
            raise OutOfRangeError(
                f"{self.what}: a value is {problem}; the log of this client has the value", diverged=not finite
            ) from None

    def _arrived(self, value: Value, sizes: Indices) -> Vector:
        if not isinstance(value, Ciphertexts):
            raise PayloadError(f"the array is not encrypted, but this run is (privacy: paillier){SAME_VERSION}")
        vector = CipherVector.from_wire(value, self.cipher.public)
        if vector.layout != self.layout or len(vector.ciphertexts) != len(sizes):
            raise PayloadError(
                f"the vector has {len(vector.ciphertexts)} ciphertexts of {vector.layout}, expected {len(sizes)} "
                f"of {self.layout}{SAME_VERSION}"
            )
        try:
            values = self.cipher.decrypt(vector).reshape(-1, self.layout.slots)
        except EncryptionError as error:
            # The position of the overflow would disclose the content of the ciphertexts, which the server chose.
            log.error("%s: %s", self.what, error)
            raise self._overflow() from None
        filled: NDArray[np.bool_] = np.arange(self.layout.slots) < sizes[:, None]
        if values[~filled].any():
            raise self._overflow()
        return values[filled]

    def _overflow(self) -> EncryptionError:
        return EncryptionError(
            f"{self.what}: an encrypted sum is out of range, or was not made in this run; raise the ranges in "
            "algorithm.encryption, or use smaller steps"
        )

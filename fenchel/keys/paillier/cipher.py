"""Encryption and decryption of vectors with the private key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError
from fenchel.common.slots import working_ns
from fenchel.keys.paillier.owner import KeyOwner


class Paillier:
    """Encryption and decryption for one client, for use by one thread at a time.

    Parameters
    ----------
    owner
        Owner of the key on one backend, which all clients of a process share.
    """

    def __init__(self, owner: KeyOwner) -> None:
        # counts and times for reports; the caller may read and replace this meter at any time
        self.meter = CipherMeter()
        self._owner = owner

    @property
    def public(self) -> PublicKey:
        """Public key, with the backend for its ciphertexts."""
        return self._owner.public

    def encrypt(self, values: Vector, layout: Layout) -> CipherVector:
        """Return the ciphertexts of a vector, and count them in the meter.

        Parameters
        ----------
        values
            Values, shape (count,), float64. They are rounded to multiples of ``2^-layout.fraction_bits``.
        layout
            Layout of several values in one plaintext.
        """
        layout.check_fits(self.public)
        started = working_ns()
        ciphertexts = self._owner.encrypt(layout.pack(values))
        self.meter.count_encryptions(len(ciphertexts), working_ns() - started)
        return CipherVector(self.public, layout, len(values), 1, ciphertexts)

    def decrypt(self, vector: CipherVector) -> NDArray[np.float64]:
        """Return the decrypted values of a vector, shape (count,), float64, and count its ciphertexts in the meter."""
        public = self.public
        if vector.key != public:
            raise EncryptionError(
                f"the vector is encrypted with the key {vector.key.fingerprint}, but this client has the key "
                f"{public.fingerprint}; give all clients the same file of secrets"
            )
        started = working_ns()
        plaintexts = self._owner.decrypt(vector.ciphertexts)
        values = vector.layout.unpack(plaintexts, vector.count, public.n, vector.additions)
        self.meter.count_decryptions(len(plaintexts), working_ns() - started)
        return values

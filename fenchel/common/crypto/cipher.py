"""Interface of encryption and decryption, whose implementation only clients have."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import CipherVector


class Cipher(Protocol):
    """Encryption and decryption of vectors for one client, implemented in ``fenchel/keys/paillier/cipher.py``.

    Attributes
    ----------
    meter
        Counts and times for reports. The caller may read and replace it at any time.
    """

    meter: CipherMeter

    @property
    def public(self) -> PublicKey:
        """Public key, with the backend for its ciphertexts."""
        ...

    def encrypt(self, values: Vector, layout: Layout, /) -> CipherVector:
        """Return the ciphertexts of a vector, and count them in the meter."""
        ...

    def decrypt(self, vector: CipherVector, /) -> NDArray[np.float64]:
        """Return the decrypted values of a vector, and count its ciphertexts in the meter."""
        ...

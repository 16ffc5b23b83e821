"""Libraries of Paillier behind one interface: vectors are encrypted, added and decrypted in one call each."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray
from phe.paillier import PaillierPrivateKey, PaillierPublicKey

from benchmarks.program import progress
from fenchel.common.arrays import Vector
from fenchel.common.crypto.packing import Layout
from fenchel.keys.paillier.cipher import Paillier
from fenchel.keys.paillier.key import PrivateKey
from fenchel.keys.paillier.owner import KeyOwner

BITS = 3072
LAYOUT = Layout(slot_bits=40, fraction_bits=24, slots=76, value_bits=36)
PRECISION = 2.0**-24
_DECIMALS = 8  # of pypaillier, whose scales are powers of ten; this is its default


class Scheme(ABC):
    """One way to encrypt vectors.

    Parameters
    ----------
    name
        The library, and how it is used.
    slots
        Values in a ciphertext.
    ciphertexts
        Ciphertexts of the vector that is timed; fewer where one takes long.
    """

    def __init__(self, name: str, slots: int, ciphertexts: int) -> None:
        self.name = name
        self.slots = slots
        self.ciphertexts = ciphertexts

    @abstractmethod
    def encrypt(self, values: Vector) -> Any:
        """Encrypt a vector."""

    @abstractmethod
    def decrypt(self, vector: Any) -> NDArray[np.float64]:
        """Return the values of a vector."""

    @abstractmethod
    def add(self, a: Any, b: Any) -> Any:
        """Return the sum of two encrypted vectors."""


class Packed(Scheme):
    """An owner of the key behind Fenchel's interface for vectors."""

    def __init__(self, name: str, owner: KeyOwner, ciphertexts: int) -> None:
        super().__init__(name, LAYOUT.slots, ciphertexts)
        self._paillier = Paillier(owner)

    def encrypt(self, values: Vector) -> Any:
        """Encrypt a vector."""
        return self._paillier.encrypt(values, LAYOUT)

    def decrypt(self, vector: Any) -> NDArray[np.float64]:
        """Return the values of a vector."""
        return self._paillier.decrypt(vector)

    def add(self, a: Any, b: Any) -> Any:
        """Return the sum of two encrypted vectors."""
        return a + b


class PheNumbers(Scheme):
    """phe as most programs use it: a float in a ciphertext."""

    def __init__(self, key: PrivateKey) -> None:
        super().__init__("phe, number by number", 1, 10)
        self._public = PaillierPublicKey(key.public.n)
        self._private = PaillierPrivateKey(self._public, key.p, key.q)

    def encrypt(self, values: Vector) -> Any:
        """Encrypt a vector."""
        return [self._public.encrypt(value, precision=PRECISION) for value in values.tolist()]

    def decrypt(self, vector: Any) -> NDArray[np.float64]:
        """Return the values of a vector."""
        return np.asarray([self._private.decrypt(number) for number in vector])

    def add(self, a: Any, b: Any) -> Any:
        """Return the sum of two encrypted vectors."""
        return [x + y for x, y in zip(a, b, strict=True)]


class _PyPaillier(Scheme):
    """pypaillier, with a key of its own: it takes no other."""

    def __init__(self, name: str, slots: int, library: Any, keys: tuple[Any, Any]) -> None:
        super().__init__(name, slots, 16)
        self._library = library
        self._public, self._secret = keys

    def add(self, a: Any, b: Any) -> Any:
        """Return the sum of two encrypted vectors."""
        count = len(a)
        return self._library.add_blocks(self._public, [*a, *b], [[at, at + count] for at in range(count)])

    def _decrypted(self, vector: Any) -> Sequence[tuple[int, int]]:
        """Return whole numbers and the power of ten by which to divide."""
        found: Sequence[tuple[int, int]] = self._library.decrypt_exact_many(self._secret, vector)
        return found


class PyPaillierNumbers(_PyPaillier):
    """pypaillier with a float in a ciphertext."""

    def encrypt(self, values: Vector) -> Any:
        """Encrypt a vector."""
        return self._library.encrypt_many(self._public, values.tolist(), _DECIMALS)

    def decrypt(self, vector: Any) -> NDArray[np.float64]:
        """Return the values of a vector."""
        return np.asarray([whole / 10**power for whole, power in self._decrypted(vector)])


class PyPaillierPacked(_PyPaillier):
    """pypaillier with the packed plaintexts of Fenchel."""

    def encrypt(self, values: Vector) -> Any:
        """Encrypt a vector."""
        return self._library.encrypt_integers(self._public, [int(each) for each in LAYOUT.pack(values)])

    def decrypt(self, vector: Any) -> NDArray[np.float64]:
        """Return the values of a vector."""
        return _unpacked([whole for whole, _ in self._decrypted(vector)])


class _Heu(Scheme):
    """sf-heu with arrays of its interface to NumPy, and with a key of its own."""

    def __init__(self, name: str, slots: int, schema: str) -> None:
        super().__init__(name, slots, 32)
        self._phe, arrays = importlib.import_module("heu.phe"), importlib.import_module("heu.numpy")
        self._keys = self._phe.setup(getattr(self._phe.SchemaType, schema), BITS)
        self._kit = arrays.HeKit(self._keys)

    def add(self, a: Any, b: Any) -> Any:
        """Return the sum of two encrypted vectors."""
        return self._kit.evaluator().add(a, b)


class HeuPairs(_Heu):
    """sf-heu with its own packing: two floats in a ciphertext."""

    _SCALE = 2**24

    def encrypt(self, values: Vector) -> Any:
        """Encrypt a vector."""
        encoder = self._phe.BatchFloatEncoderParams(self._SCALE)
        return self._kit.encryptor().encrypt(self._kit.array(values.reshape(-1, 2), encoder))

    def decrypt(self, vector: Any) -> NDArray[np.float64]:
        """Return the values of a vector."""
        numbers = self._kit.decryptor().decrypt(vector)
        return np.asarray(numbers.to_numpy(self._keys.batch_float_encoder(self._SCALE)), np.float64).reshape(-1)


class HeuPacked(_Heu):
    """sf-heu with the packed plaintexts of Fenchel."""

    def encrypt(self, values: Vector) -> Any:
        """Encrypt a vector."""
        plaintexts = np.empty(LAYOUT.ciphertexts(len(values)), object)
        plaintexts[:] = [int(each) for each in LAYOUT.pack(values)]
        return self._kit.encryptor().encrypt(self._kit.array(plaintexts, self._phe.BigintEncoderParams()))

    def decrypt(self, vector: Any) -> NDArray[np.float64]:
        """Return the values of a vector."""
        numbers = self._kit.decryptor().decrypt(vector)
        return _unpacked(numbers.to_numpy(self._keys.bigint_encoder()).tolist())


def peers(*, quick: bool) -> tuple[list[Scheme], dict[str, str]]:
    """Return the optional libraries that are installed, on one thread, and a line on each of them."""
    # These libraries read this when they are imported.
    os.environ.update(RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1")
    schemes: list[Scheme] = []
    lines = {
        f"phe {metadata.version('phe')}": "encrypts without the private key, by an exponentiation modulo n² with the "
        "exponent n for each ciphertext, and adds no assumption"
    }
    for name, make in (("pypaillier", _pypaillier), ("sf-heu", _heu)):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            lines[name] = "left out: it is not installed"
            continue
        found, line = make(quick)
        schemes += found
        lines[f"{name} {version}"] = line
    return schemes, lines


def _pypaillier(quick: bool) -> tuple[list[Scheme], str]:
    if quick:
        return [], "left out of a quick run: its keys of safe primes may take a minute"
    library = importlib.import_module("paillier")
    progress("pypaillier makes its key, which may take a minute")
    keys = library.generate_keypair(BITS)
    return [
        PyPaillierNumbers("pypaillier, number by number", 1, library, keys),
        PyPaillierPacked("pypaillier, packed as here", LAYOUT.slots, library, keys),
    ], (
        f"encrypts without the private key, by powers with exponents of {keys[0].exponent_bits} bits in place of n: "
        "these short exponents are an assumption beyond Paillier's own"
    )


def _heu(quick: bool) -> tuple[list[Scheme], str]:
    schemes: list[Scheme] = [
        HeuPairs("sf-heu ZPaillier, its own packing", 2, "ZPaillier"),
        HeuPacked("sf-heu ZPaillier, packed as here", LAYOUT.slots, "ZPaillier"),
    ]
    line = (
        "ZPaillier encrypts without the private key, by a table of powers and exponents of "
        f"{BITS // 2} bits in place of n: these short exponents are an assumption beyond Paillier's own"
    )
    try:
        schemes.append(HeuPacked("sf-heu IPCL, packed as here", LAYOUT.slots, "IPCL"))
    except RuntimeError:
        line += f"; IPCL is left out, as it refuses to make a key of {BITS} bits"
    return schemes, line


def _unpacked(plaintexts: Sequence[int]) -> NDArray[np.float64]:
    """Return the values of signed plaintexts, fresh ones or sums."""
    count = len(plaintexts) * LAYOUT.slots
    return LAYOUT.unpack([mpz(int(each)) for each in plaintexts], count, 1 << BITS)

"""The kernel of the backend ``ifma`` computes what Intel's crypto_mb computes, which is code that others wrote."""

from __future__ import annotations

import ctypes
import sysconfig
from pathlib import Path

import gmpy2
import pytest
from gmpy2 import mpz

from fenchel.common.crypto.residues.ifma import SquareModuli
from tests.ifma_kernel import in_use

_NEEDS = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so")
_Number = ctypes.POINTER(ctypes.c_uint64)


def _crypto_mb() -> ctypes.CDLL:
    """Load the library from where ``pip install ipp-crypto intel-cmplr-lib-rt`` puts it."""
    folder = Path(sysconfig.get_path("data"), "lib")
    try:
        for name in _NEEDS:
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(folder / "libcrypto_mb.so"))
    except OSError:
        pytest.skip("crypto_mb is not installed")
    library.mbx_exp_mb8.restype = ctypes.c_uint32
    return library


def _eight(numbers: list[mpz], bits: int) -> ctypes.Array[ctypes.Array[ctypes.c_uint64]]:
    words = -(-bits // 64)
    return ((ctypes.c_uint64 * words) * 8)(
        *((ctypes.c_uint64 * words).from_buffer_copy(number.to_bytes(words * 8, "little")) for number in numbers)
    )


def _pointers(numbers: ctypes.Array[ctypes.Array[ctypes.c_uint64]]) -> ctypes.Array[ctypes._Pointer[ctypes.c_uint64]]:
    return (_Number * 8)(*(ctypes.cast(number, _Number) for number in numbers))


@pytest.mark.parametrize("bits", [2048, 3072, 4096])
def test_powers_are_those_of_crypto_mb(bits: int) -> None:
    library = _crypto_mb()
    state = gmpy2.random_state(bits)
    root = mpz(3) << (bits // 2 - 2) | gmpy2.mpz_urandomb(state, bits // 2 - 2) | 1
    square = root * root
    assert square.bit_length() == bits
    bases = [gmpy2.mpz_random(state, square) for _ in range(8)]
    exponent = gmpy2.mpz_urandomb(state, bits // 2)
    with in_use("instructions"):
        moduli = SquareModuli(root)
        (ours,) = moduli.numbers(moduli.powers(moduli.of(bases), int(exponent)), 8)

    found = _eight([mpz(0)] * 8, bits)
    given = [_eight(numbers, bits) for numbers in (bases, [exponent] * 8, [square] * 8)]
    size = library.mbx_exp_BufferSize(bits)
    status = library.mbx_exp_mb8(
        _pointers(found),
        _pointers(given[0]),
        _pointers(given[1]),
        bits // 2,
        _pointers(given[2]),
        bits,
        ctypes.create_string_buffer(size),
        size,
    )
    assert status == 0
    assert ours == [mpz.from_bytes(bytes(number), "little") for number in found]

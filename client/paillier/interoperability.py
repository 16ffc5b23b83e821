"""Keys of the library phe (python-paillier), in both directions.

Ciphertexts are the same numbers: phe decrypts what Fenchel writes, and Fenchel what phe writes. phe is
optional (``pip install "fenchel[phe]"``) and its licence is the GPL, version 3 or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenchel.client.paillier.key import PrivateKey
from fenchel.common.errors import CredentialError, MissingDependencyError

if TYPE_CHECKING:
    from phe.paillier import PaillierPrivateKey, PaillierPublicKey


def to_phe(key: PrivateKey) -> tuple[PaillierPublicKey, PaillierPrivateKey]:
    """Return the same key pair as objects of phe."""
    try:
        from phe.paillier import PaillierPrivateKey, PaillierPublicKey
    except ImportError:
        raise MissingDependencyError(
            'keys of phe need that library, which is not installed: pip install "fenchel[phe]"'
        ) from None
    public = PaillierPublicKey(key.public.n)
    return public, PaillierPrivateKey(public, key.p, key.q)


def from_phe(key: PaillierPrivateKey) -> PrivateKey:
    """Return a private key of phe as one of Fenchel.

    The factors of p-1 and q-1 stay unknown, so encrypting takes three to four times less time than with
    phe, not a thousandth of it as with keys of Fenchel's own.
    """
    p, q = getattr(key, "p", None), getattr(key, "q", None)
    if not isinstance(p, int) or not isinstance(q, int):
        raise CredentialError(f"a private key of phe is needed, with its primes p and q, not a {type(key).__name__}")
    return PrivateKey(p, q)

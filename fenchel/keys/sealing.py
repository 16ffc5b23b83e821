"""Sealed boxes, which only the owner of an X25519 key can open.

A box is an ephemeral public key, 32 bytes, followed by the ciphertext of ChaCha20-Poly1305. The cipher's key comes from
HKDF-SHA256 over the X25519 agreement of the ephemeral key with the recipient's key. HPKE's base mode (RFC 9180) and
libsodium's sealed boxes are similar. The box does not authenticate its sender, who signs it
(:mod:`fenchel.keys.identity`).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fenchel.common.errors import CredentialError

PUBLIC_BYTES = 32
BEGIN_ANEW = (
    ". No secrets are shared with that client. Begin a new run; if this recurs, messages between the clients are "
    "changed on the way"
)
"""Last sentences of errors of the secret exchange whose likeliest cause is a changed message."""
_TAG_BYTES = 16
_NONCE = bytes(12)  # constant nonce, because each key seals only one message


def seal(message: bytes, recipient: bytes, context: bytes) -> bytes:
    """Return a sealed box with a message for the owner of a public key.

    Parameters
    ----------
    recipient
        X25519 public key of the recipient, 32 bytes.
    context
        Context of the box, such as the run. The box opens only with the same context.

    Raises
    ------
    CredentialError
        If ``recipient`` is not an X25519 public key.
    """
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    cipher = _cipher(ephemeral, public, recipient, other=recipient)
    return public + cipher.encrypt(_NONCE, message, context)


def unseal(box: bytes, key: X25519PrivateKey, context: bytes) -> bytes:
    """Return the message in a box that :func:`seal` made; raise ``CredentialError`` if the box does not open."""
    if len(box) < PUBLIC_BYTES + _TAG_BYTES:
        raise CredentialError(f"a sealed box of {len(box)} bytes is too short{BEGIN_ANEW}")
    public, ciphertext = box[:PUBLIC_BYTES], box[PUBLIC_BYTES:]
    cipher = _cipher(key, public, key.public_key().public_bytes_raw(), other=public)
    try:
        return cipher.decrypt(_NONCE, ciphertext, context)
    except InvalidTag:
        raise CredentialError(
            "a sealed box does not open, because it was sealed for another key or run, or changed on the "
            f"way{BEGIN_ANEW}"
        ) from None


def _cipher(own: X25519PrivateKey, ephemeral: bytes, recipient: bytes, *, other: bytes) -> ChaCha20Poly1305:
    try:
        agreed = own.exchange(X25519PublicKey.from_public_bytes(other))
    # a key of other than 32 bytes, or a point of small order, which would make the agreed key public
    except ValueError:
        raise CredentialError(f"the offered key is not an X25519 public key{BEGIN_ANEW}") from None
    key = HKDF(SHA256(), length=32, salt=None, info=b"fenchel sealed box 1" + ephemeral + recipient)
    return ChaCha20Poly1305(key.derive(agreed))

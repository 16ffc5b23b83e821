"""The count and the time of a client's encryption and decryption."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CipherMeter:
    """Ciphertexts made and opened so far, and the nanoseconds that it took."""

    encryptions: int = 0
    encryption_ns: int = 0
    decryptions: int = 0
    decryption_ns: int = 0

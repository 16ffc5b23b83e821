"""Count and time of a client's encryption and decryption."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CipherMeter:
    """Numbers of encrypted and decrypted ciphertexts, and the time spent in nanoseconds."""

    encryptions: int = 0
    encryption_ns: int = 0
    decryptions: int = 0
    decryption_ns: int = 0

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

    def count_encryptions(self, ciphertexts: int, duration_ns: int) -> None:
        """Add the encryption of some ciphertexts."""
        self.encryptions += ciphertexts
        self.encryption_ns += duration_ns

    def count_decryptions(self, ciphertexts: int, duration_ns: int) -> None:
        """Add the decryption of some ciphertexts."""
        self.decryptions += ciphertexts
        self.decryption_ns += duration_ns

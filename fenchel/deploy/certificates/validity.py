"""Validity of certificates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509

from fenchel.common.errors import CredentialError, SettingsError

CLOCK_SKEW = timedelta(hours=1)
"""Time by which the validity of a new certificate begins in the past, for machines whose clocks are behind."""


def now() -> datetime:
    """Return the time in whole seconds, the resolution of certificates."""
    return datetime.now(UTC).replace(microsecond=0)


def lifetime(days: int) -> timedelta:
    """Return a validity in days as a duration. Raise ``SettingsError`` unless it is 1 to 36500 days."""
    if not 1 <= days <= 36500:
        raise SettingsError(f"a certificate cannot be valid for {days} days; give 1 to 36500")
    return timedelta(days=days)


def check_dates(certificate: x509.Certificate, who: str) -> None:
    """Raise a ``CredentialError`` unless a certificate is valid now."""
    time, start, end = now(), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if time > end:
        raise CredentialError(
            f"{who} expired on {end:%Y-%m-%d}; replace it with fenchel certs renew, where the authority's key is"
        )
    if time < start:
        raise CredentialError(
            f"{who} is not valid before {start:%Y-%m-%d %H:%M} UTC, but the clock of this machine shows "
            f"{time:%Y-%m-%d %H:%M}; correct the clock, or wait"
        )

"""The choice of the code that computes on the ciphertexts of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenchel.common.crypto.public_key import Implementation
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.errors import SettingsError

if TYPE_CHECKING:
    from fenchel.common.crypto.residues.interface import Residues


def residues(implementation: Implementation) -> type[Residues]:
    """Return the numbers of an implementation.

    Raises
    ------
    SettingsError
        Its library is not installed.
    """
    if implementation == "fenchel":
        return GmpResidues
    try:
        from fenchel.common.crypto.residues.phe import PheResidues
    except ImportError:
        raise SettingsError(
            "phe is not installed here: pip install 'fenchel[phe]' (it is under the GPL, version 3 or later), or use "
            "the implementation fenchel",
            key="algorithm.encryption.implementation",
        ) from None
    return PheResidues

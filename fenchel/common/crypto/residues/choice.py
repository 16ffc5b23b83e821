"""Selection of the backend for modular arithmetic on Paillier ciphertexts."""

from __future__ import annotations

from fenchel.common.crypto.public_key import Backend, BackendChoice, Implementation
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.residues.ifma import IfmaResidues, check_available, is_available
from fenchel.common.crypto.residues.interface import Residues
from fenchel.common.errors import SettingsError


def backend_of(implementation: Implementation, choice: BackendChoice = "auto") -> Backend:
    """Return the backend of an implementation on this machine.

    Raises
    ------
    SettingsError
        If this machine does not support the chosen backend, or its library is not installed.
    """
    if implementation == "phe":
        if choice != "auto":
            raise SettingsError(
                f"{choice} is a backend of the implementation fenchel; with phe use auto",
                key="algorithm.encryption.backend",
            )
        residues("phe")
        return "phe"
    if choice == "auto":
        return "ifma" if is_available() else "gmp"
    if choice == "ifma":
        try:
            check_available()
        except SettingsError as error:
            raise SettingsError(
                f"{error.problem}; use auto or gmp, which compute the same numbers", key="algorithm.encryption.backend"
            ) from None
    return choice


def residues(backend: Backend) -> type[Residues]:
    """Return the subclass of ``Residues`` that implements a backend.

    Raises
    ------
    SettingsError
        If the library of the backend is not installed.
    """
    if backend == "gmp":
        return GmpResidues
    if backend == "ifma":
        return IfmaResidues
    try:
        from fenchel.common.crypto.residues.phe import PheResidues
    except ImportError:
        raise SettingsError(
            "phe is not installed; use the implementation fenchel, or pip install 'fenchel[phe]' (phe is under "
            "the GPL, version 3 or later)",
            key="algorithm.encryption.implementation",
        ) from None
    return PheResidues

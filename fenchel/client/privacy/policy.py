"""Privacy policy of a client, independent of the run's settings (docs/privacy.md, "A client's own policy")."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fenchel.common.accounting.public_facts import Support
from fenchel.common.crypto.public_key import SAFE_BITS
from fenchel.common.errors import SettingsError
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.privacy import DifferentialPrivacy, Mechanism
from fenchel.common.settings.reading import read_mapping, validated
from fenchel.common.settings.section import Section


class Policy(Section):
    """Least protection that a client requires of every run. Other runs are rejected."""

    minimum_noise_multiplier: PositiveFloat | None = Field(
        None, description="least noise on an upload, over its sensitivity (z)"
    )
    maximum_clip_gradient: PositiveFloat | None = Field(
        None, description="largest clipping norm of a sample's gradient (G)"
    )
    maximum_clip_update: PositiveFloat | None = Field(None, description="largest clipping norm of an update (C)")
    maximum_epsilon: PositiveFloat | None = Field(
        None, description="largest epsilon of all uploads of all runs, which the ledger enforces"
    )
    ledger: Path | None = Field(
        None,
        description="ledger file of all runs, relative to the policy's folder; default: _policy.ledger in the folder "
        "of --state",
    )
    delta: float = Field(1e-5, ge=1e-10, lt=1, description="largest delta of a run's epsilon")
    mechanisms: tuple[Mechanism, ...] = Field(
        ("contractive", "batch", "recursive", "clip-update"),
        min_length=1,
        description="allowed mechanisms; paper has no guarantee",
    )
    supports: tuple[Support, ...] = Field(
        ("dense", "random", "shared-random", "public-top-k"),
        min_length=1,
        description="allowed choices of coordinates; those of top-k reveal information about the data",
    )
    encryption: Literal["required", "optional"] = Field(
        "optional", description="required: reject runs without encryption, or with keys below 2048 bits"
    )
    protect_primal: bool = Field(
        False, description="reject runs that do not encrypt this client's contributions to the model"
    )
    least_picks: PositiveInt | None = Field(
        None,
        description="least number of dual coordinates that a round may update, and that a contribution may depend on",
    )

    @property
    def _wants_encryption(self) -> str:
        """Key that requires encryption, with its value; empty if no key does."""
        if self.encryption == "required":
            return "encryption: required"
        return "protect_primal: true" if self.protect_primal else ""

    def check_exposure(self, client: str, algorithm: AlgorithmSettings, *, evaluates: bool = False) -> None:
        """Reject a run that encrypts less than the policy requires.

        Parameters
        ----------
        client
            Client id, for messages.
        algorithm
            Settings of the run's algorithm.
        evaluates
            True if the client sends exact losses of models that the server chooses.

        Raises
        ------
        SettingsError
            If the policy does not accept a value of the run. The message lists all such values and the required ones.
        """
        wanted = []
        if evaluates and self._wants_encryption:
            wanted.append(
                "has clients send exact losses, from which samples can be reconstructed, but the policy requires "
                f"{self._wants_encryption} (with evaluation.clients: false they send none)"
            )
        bits = algorithm.key_bits
        if self.encryption == "required" and (bits is None or bits < SAFE_BITS):
            given = "nothing" if bits is None else f"with a key of {bits} bits, which can be broken"
            wanted.append(
                f"encrypts {given}, but the policy requires encryption with a key of at least {SAFE_BITS} bits"
            )
        if self.protect_primal and not algorithm.hides_model:
            wanted.append("shows the server this client's contributions, but the policy requires protect_primal: true")
        picks = getattr(algorithm, "picks", None)  # None if clients use all blocks, or if the algorithm has no blocks
        if (least := self.least_picks) is not None and isinstance(picks, int):
            if picks < least:
                wanted.append(f"has picks: {picks}, but the policy requires at least {least}")
            # With common picks the server sets this client's quota. From a small quota it could compute the client's
            # contribution, given those of the others.
            elif getattr(algorithm, "picking", None) == "common":
                wanted.append(
                    f"has picking: common, with which the server can give this client fewer than the {least} picks "
                    "that the policy requires (picking: independent gives each client the number in picks)"
                )
        _refuse(client, wanted)

    def check_without_privacy(self, client: str) -> None:
        """Reject a run without differential privacy if the policy requires it.

        Raises
        ------
        SettingsError
            If the policy requires noise.
        """
        only_encryption = self._wants_encryption and self.model_fields_set <= _OF_ENCRYPTION
        if not only_encryption:
            _refuse(client, ["sends uploads without differential privacy, but the policy requires it"])

    def check_privacy(self, client: str, asked: DifferentialPrivacy, noise_multiplier: float, support: Support) -> None:
        """Reject a run whose differential privacy is weaker than the policy requires.

        Parameters
        ----------
        client
            Client id, for messages.
        asked
            Differential privacy in the run's settings.
        noise_multiplier
            Standard deviation of the noise of an upload, divided by its sensitivity.
        support
            Selection of the coordinates that are sent.

        Raises
        ------
        SettingsError
            If the policy does not accept a value of the run. The message lists all such values and the required ones.
        """
        wanted = []
        if asked.mechanism not in self.mechanisms:
            wanted.append(f"has mechanism: {asked.mechanism}, but the policy requires {_any(self.mechanisms)}")
        if support not in self.supports:
            wanted.append(f"sends {support} coordinates, but the policy requires {_any(self.supports)}")
        least = self.minimum_noise_multiplier
        if least is not None and noise_multiplier < least:
            wanted.append(
                f"has a noise multiplier of {noise_multiplier:.4g}, but the policy requires at least {least:g}"
            )
        of_updates = asked.mechanism == "clip-update"
        limits = (
            ("clip", asked.clip, self.maximum_clip_update if of_updates else self.maximum_clip_gradient),
            ("a budget of epsilon", asked.budget, self.maximum_epsilon),
            ("delta", asked.delta, self.delta),
        )
        wanted += [
            f"has {name} = {given:g}, but the policy allows at most {most:g}"
            for name, given, most in limits
            if given is not None and most is not None and given > most
        ]
        _refuse(client, wanted)


_OF_ENCRYPTION = {"encryption", "protect_primal", "least_picks"}


def _refuse(client: str, wanted: Sequence[str]) -> None:
    """Raise an error that lists unmet requirements, if there are any."""
    if wanted:
        raise SettingsError(f"client {client} does not take part: the run {'; it '.join(wanted)}")


def _any(allowed: tuple[str, ...]) -> str:
    return " or ".join(allowed)


def load_policy(path: Path) -> Policy:
    """Read a policy from a YAML file; raise ``SettingsError`` if the file cannot be read or is invalid.

    A relative path of the policy's ledger is resolved from the folder of the file.
    """
    try:
        values = read_mapping(path)
    except SettingsError as error:
        raise error.at(key="--privacy-policy") from None
    policy = validated(Policy, values, str(path))
    if policy.ledger is None:
        return policy
    return policy.model_copy(update={"ledger": path.parent / policy.ledger.expanduser()})

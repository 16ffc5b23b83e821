"""What a client insists on, whatever the server asks for (FedPDM specification, section 2.1: DpSpec is a request)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, PositiveFloat, ValidationError

from common.errors import SettingsError
from common.privacy.facts import Support
from common.settings.privacy import DifferentialPrivacy, Mechanism
from common.settings.section import Section, settings_error, yaml_value


class Policy(Section):
    """One client's own limits; a run that asks for less protection is refused."""

    minimum_noise_multiplier: PositiveFloat | None = Field(
        None, description="least noise on an upload, over its sensitivity (z)"
    )
    maximum_clip_gradient: PositiveFloat | None = Field(
        None, description="largest norm that a sample's gradient may keep (G)"
    )
    maximum_clip_update: PositiveFloat | None = Field(
        None, description="largest length that an update may keep (C)"
    )
    maximum_epsilon: PositiveFloat | None = Field(
        None, description="largest epsilon of all uploads of a run; the ledger stops the client there"
    )
    delta: float = Field(1e-5, ge=1e-10, lt=1, description="largest delta that epsilon may be stated with")
    mechanisms: tuple[Mechanism, ...] = Field(
        ("contractive", "batch", "recursive", "clip-update"),
        min_length=1,
        description="how sensitivity may be bounded; paper guarantees nothing",
    )
    supports: tuple[Support, ...] = Field(
        ("dense", "random", "shared-random", "public-top-k"),
        min_length=1,
        description="which coordinates may be sent; those of top-k tell about the data",
    )

    def refusal(
        self, asked: DifferentialPrivacy | None, noise_multiplier: float, support: Support
    ) -> str | None:
        """Return why this client does not take part in a run, or ``None`` if it does.

        Parameters
        ----------
        asked
            What the run's settings ask for; ``None``: no differential privacy.
        noise_multiplier
            ``z`` of the uploads, as :meth:`DifferentialPrivacy.noise` gives it.
        support
            Which coordinates the run sends.

        Returns
        -------
        str | None
            What the run asks for and what this policy wants, for each point in which they differ.
        """
        if asked is None:
            return "the run sends uploads without differential privacy, and this client's policy wants it"
        wanted = []
        if asked.mechanism not in self.mechanisms:
            wanted.append(
                f"asks for mechanism: {asked.mechanism}, and the policy wants {_any(self.mechanisms)}"
            )
        if support not in self.supports:
            wanted.append(f"sends {support} coordinates, and the policy wants {_any(self.supports)}")
        least = self.minimum_noise_multiplier
        if least is not None and noise_multiplier < least:
            wanted.append(
                f"asks for a noise multiplier of {noise_multiplier:.4g}, and the policy wants {least:g} or more"
            )
        limits = (
            ("clip_gradient", asked.clip_gradient, self.maximum_clip_gradient),
            ("clip_update", asked.clip_update, self.maximum_clip_update),
            ("a budget of epsilon", asked.budget, self.maximum_epsilon),
            ("delta", asked.delta, self.delta),
        )
        wanted += [
            f"asks for {name} = {given:g}, and the policy wants {most:g} or less"
            for name, given, most in limits
            if given is not None and most is not None and given > most
        ]
        return f"the run {'; it '.join(wanted)}" if wanted else None

    def cap(self, budget: float | None) -> float | None:
        """Return the largest epsilon for this client's ledger: the run's budget or the policy's, whichever is less."""
        caps = [cap for cap in (budget, self.maximum_epsilon) if cap is not None]
        return min(caps) if caps else None


def _any(allowed: tuple[str, ...]) -> str:
    return " or ".join(allowed)


def load_policy(path: Path) -> Policy:
    """Read a policy from a YAML file.

    Raises
    ------
    SettingsError
        The file cannot be read or parsed, or its contents cannot be accepted.
    """
    try:
        values: Any = yaml_value(path.read_text())
    except OSError as error:
        raise SettingsError(f"--privacy-policy {path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(
            f"{path}: expected a mapping such as {{maximum_epsilon: 5}}, found {type(values).__name__}"
        )
    try:
        return Policy.model_validate(values)
    except ValidationError as error:
        raise settings_error(error, values, str(path)) from None

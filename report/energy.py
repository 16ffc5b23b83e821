"""What computing and sending cost a client, in energy and time, by a model of its processor and its channel.

The model is the usual one (DRDM specification, section 4.2): dynamic power of a processor, a channel at Shannon's
capacity. Its constants stand for no particular device; all of them can be set. Units: bits, hertz, watts, seconds,
joules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError

from common.errors import SettingsError
from common.settings.objective import (
    BinarySettings,
    CnnScorer,
    CnnSettings,
    LinearScorer,
    MlpScorer,
    MlpSettings,
    ObjectiveSettings,
    OwnSettings,
)
from common.settings.section import Section, settings_error

BACKWARD = 3
"""A forward and backward pass cost about as much as three forward passes."""


class Device(Section):
    """A client's processor and radio; the defaults are illustrations, of no paper and no product."""

    transmit_power: NonNegativeFloat = Field(0.2, description="P_tx, watts while sending")
    receive_power: NonNegativeFloat = Field(0.0, description="P_rx, watts while receiving; 0 leaves it out")
    capacitance: NonNegativeFloat = Field(
        1e-28, description="kappa, effective switched capacitance: a cycle costs kappa f^2 joules"
    )
    frequency: PositiveFloat = Field(1e9, description="f, cycles a second")
    cycles_per_mac: PositiveFloat = Field(1.0, description="cycles for one multiply-accumulate operation")


@dataclass(frozen=True)
class Devices:
    """The devices of a run's clients.

    Attributes
    ----------
    common
        Of all clients but these:
    clients
        Devices of some clients, by id.
    """

    common: Device = field(default_factory=Device)
    clients: Mapping[str, Device] = field(default_factory=dict)

    @classmethod
    def of_constants(cls, values: Mapping[str, Any]) -> Devices:
        """Make devices of constants: those of :class:`Device`, and under ``clients`` what differs for some of them.

        Raises
        ------
        SettingsError
            A constant is unknown, or not a number that it can be.
        """
        common = {key: value for key, value in values.items() if key != "clients"}
        own = values.get("clients") or {}
        if not isinstance(own, Mapping) or not all(isinstance(each, Mapping) for each in own.values()):
            raise SettingsError(
                "device: clients: expected constants for each client, such as {client-003: {frequency: 5e8}}"
            )
        clients = {str(name): _device({**common, **each}, f"device of {name}") for name, each in own.items()}
        return cls(_device(common, "device"), clients)

    def of(self, client: str) -> Device:
        """Return the device of a client."""
        return self.clients.get(client, self.common)

    @property
    def receive(self) -> bool:
        """Whether receiving costs a client power."""
        return any(each.receive_power for each in (self.common, *self.clients.values()))


def _device(values: Mapping[str, Any], source: str) -> Device:
    try:
        return Device.model_validate(values)
    except ValidationError as error:
        raise settings_error(error, values, source) from None


@dataclass(frozen=True)
class Channel:
    """A client's way to the server; each client has it for itself.

    Attributes
    ----------
    snr_db
        Signal-to-noise ratio, in decibels.
    bandwidth
        B, in hertz; independent of the ratio (noise power is not tied to it).
    downlink_rate
        Of the way back, in bits a second; ``None``: it costs neither time nor energy.
    """

    snr_db: float
    bandwidth: float
    downlink_rate: float | None = None

    @property
    def rate(self) -> float:
        """Bits a second towards the server: ``B log2(1 + snr)``, Shannon's capacity."""
        return float(self.bandwidth * math.log2(1 + 10 ** (self.snr_db / 10)))


@dataclass(frozen=True)
class Cost:
    """Energy in joules, time in seconds."""

    energy: float
    seconds: float


def sending(device: Device, channel: Channel, bits: float) -> Cost:
    """Return what sending so many bits to the server costs: ``E_tx = P_tx bits / rate``."""
    seconds = bits / channel.rate
    return Cost(device.transmit_power * seconds, seconds)


def receiving(device: Device, channel: Channel, bits: float) -> Cost:
    """Return what receiving so many bits costs: nothing, unless the channel has a rate for it."""
    seconds = 0.0 if channel.downlink_rate is None else bits / channel.downlink_rate
    return Cost(device.receive_power * seconds, seconds)


def computing(device: Device, macs: float) -> Cost:
    """Return what so many multiply-accumulate operations cost: ``kappa cycles f^2`` joules, ``cycles / f`` seconds."""
    cycles = macs * device.cycles_per_mac
    return Cost(device.capacitance * cycles * device.frequency**2, cycles / device.frequency)


def bits_of(
    vectors: float, parameters: int, scalars: int = 0, *, float_bytes: int = 4, header: int = 0
) -> float:
    """Return the length of a message that was not measured, in bits: vectors of so many parameters, and scalars."""
    return 8 * float_bytes * (vectors * parameters + scalars) + header


def forward_macs(objective: ObjectiveSettings, features: int, classes: int) -> int:
    """Return the multiply-accumulate operations of one sample's forward pass; biases, ReLU and pooling are free.

    Parameters
    ----------
    objective
        The section ``objective``.
    features, classes
        Of the whole problem, the bias among the features.

    Raises
    ------
    SettingsError
        Nobody here knows how much the model computes: it is one of somebody's own, or a deep network.
    """
    if isinstance(objective, OwnSettings):
        raise SettingsError(
            f"objective.name: {objective.name}: nobody here knows how much this model computes; say how many "
            "multiply-accumulate operations the forward pass of one sample takes, with --macs"
        )
    if isinstance(objective, BinarySettings):
        return _scorer_macs(objective, features)
    if isinstance(objective, MlpSettings):
        return (features + classes) * objective.hidden
    if isinstance(objective, CnnSettings):
        return _cnn(features, classes)
    return features * (classes if objective.kind in ("softmax", "one-sided-logistic") else 1)


def _scorer_macs(objective: BinarySettings, features: int) -> int:
    match objective.scorer:
        case LinearScorer():
            return features
        case MlpScorer(hidden=hidden):
            return (features + 1) * hidden
        case CnnScorer():
            return _cnn(features, 1)
    raise SettingsError(
        f"objective.scorer.kind: {objective.scorer.kind}: how much this network computes is not known here; say how "
        "many multiply-accumulate operations the forward pass of one sample takes, with --macs"
    )


def _cnn(features: int, outputs: int) -> int:
    """Two 3x3 convolutions (16 and 32 channels), each followed by 2x2 pooling, and 500 units."""
    side = math.isqrt(features)
    first = side**2 * 16 * 9
    second = (side // 2) ** 2 * 32 * 16 * 9
    return first + second + (side // 4) ** 2 * 32 * 500 + 500 * outputs


# The choice of local steps


def between(table: Mapping[int, float], steps: float) -> float:
    """Return a quantity at a number of local steps, by linear interpolation of a table.

    Parameters
    ----------
    table
        The quantity by number of local steps, such as the rounds S(tau) to a target accuracy.
    steps
        tau, between the smallest and the largest of the table.

    Raises
    ------
    SettingsError
        The table does not reach so far: it says nothing of what lies outside.
    """
    known = sorted(table)
    if not known or not known[0] <= steps <= known[-1]:
        reach = f"{known[0]} to {known[-1]}" if known else "none at all"
        raise SettingsError(
            f"{steps:g} local steps lie outside those that are known ({reach}): make a run with so many"
        )
    return float(np.interp(steps, known, [table[tau] for tau in known]))


def best_local_steps(rounds: Mapping[int, float], energy_of_round: Callable[[int], float]) -> int:
    """Return the number of local steps with which a target takes the least energy (DRDM specification, section 4.2).

    Minimises ``S(tau) E_round(tau)`` over all whole numbers from the smallest to the largest of the table; of equals
    the smallest wins. Between two known points S is linear, and so is the energy of a round, ``tau E_step + E_tx``,
    which grows. Their product has no minimum in between: the best number is always one that is known.

    Parameters
    ----------
    rounds
        S(tau), the rounds to the target with tau local steps; at least one entry.
    energy_of_round
        Of all clients together, in joules or any other unit.
    """
    candidates = range(min(rounds), max(rounds) + 1)
    return min(candidates, key=lambda tau: between(rounds, tau) * energy_of_round(tau))


def fitted(rounds: Mapping[int, float]) -> tuple[float, float]:
    """Return a and b of the least-squares fit ``S(tau) = a + b / tau``, of a table with at least two entries."""
    tau = np.array(sorted(rounds), np.float64)
    columns = np.stack([np.ones_like(tau), 1 / tau], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.array([rounds[int(t)] for t in tau]), rcond=None)
    return float(a), float(b)


def best_of_fit(a: float, b: float, ratio: float) -> float:
    """Return the best number of local steps where ``S(tau) = a + b / tau``: ``sqrt((b / a) r)``.

    Parameters
    ----------
    a, b
        Both positive.
    ratio
        r, the energy of a round's upload over that of one local step.
    """
    return math.sqrt(b / a * ratio)

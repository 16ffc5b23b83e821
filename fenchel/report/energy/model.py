"""Model of the energy and time of a client for computation and communication.

The model is the usual one (docs/specifications/drdm.md, section 4.2): dynamic power of a processor, and a channel
at Shannon's capacity. The constants describe no particular device, and all of them can be set. Units: bits, hertz,
watts, seconds, joules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fenchel.common.errors import SettingsError
from fenchel.common.settings.section import Section, settings_error

_MOST = 1e30  # upper limit of every constant, small enough that products of constants and of their squares stay finite
_MOST_DB = 300
_NotNegative = Annotated[float, Field(ge=0, le=_MOST)]
_Positive = Annotated[float, Field(ge=1 / _MOST, le=_MOST)]


class Device(Section):
    """A client's processor and radio; the defaults are illustrations, of no paper and no product."""

    transmit_power: _NotNegative = Field(0.2, description="P_tx, watts while sending")
    receive_power: _NotNegative = Field(0.0, description="P_rx, watts while receiving; 0 leaves it out")
    capacitance: _NotNegative = Field(
        1e-28, description="kappa, effective switched capacitance: a cycle costs kappa f^2 joules"
    )
    frequency: _Positive = Field(1e9, description="f, cycles a second")
    cycles_per_mac: _Positive = Field(1.0, description="cycles for one multiply-accumulate operation")


@dataclass(frozen=True)
class Devices:
    """Devices of a run's clients.

    Attributes
    ----------
    common
        Device of all clients that have no device of their own.
    clients
        Devices of some clients, by id.
    """

    common: Device = field(default_factory=Device)
    clients: Mapping[str, Device] = field(default_factory=dict)

    @classmethod
    def of_constants(cls, values: Mapping[str, Any]) -> Devices:
        """Make the devices of a run from constants.

        Parameters
        ----------
        values
            Constants of the common :class:`Device`. The key ``clients`` maps client ids to constants that differ.

        Raises
        ------
        SettingsError
            If a constant is invalid, or ``clients`` is not such a mapping.
        """
        common = {key: value for key, value in values.items() if key != "clients"}
        own = values.get("clients") or {}
        if not isinstance(own, Mapping) or not all(isinstance(each, Mapping) for each in own.values()):
            raise SettingsError(
                "clients is not a mapping of client names to constants, such as {client-003: {frequency: 5e8}}",
                key="device",
            )
        clients = {str(name): _device({**common, **each}, f"device of {name}") for name, each in own.items()}
        return cls(_device(common, "device"), clients)

    def of(self, client: str) -> Device:
        """Return the device of a client."""
        return self.clients.get(client, self.common)

    @property
    def receive(self) -> bool:
        """True if any device consumes power while receiving."""
        return any(each.receive_power for each in (self.common, *self.clients.values()))


def _device(values: Mapping[str, Any], source: str) -> Device:
    try:
        return Device.model_validate(values)
    except ValidationError as error:
        raise settings_error(error, values, source) from None


@dataclass(frozen=True)
class Channel:
    """Channel between one client and the server. Clients do not share a channel.

    Attributes
    ----------
    snr_db
        Signal-to-noise ratio, in decibels.
    bandwidth
        Bandwidth B in hertz, which does not affect the signal-to-noise ratio.
    downlink_rate
        Rate from the server to the client in bits per second. ``None`` if receiving costs neither time nor energy.

    Raises
    ------
    SettingsError
        If a value is outside its range.
    """

    snr_db: float
    bandwidth: float
    downlink_rate: float | None = None

    def __post_init__(self) -> None:
        if not abs(self.snr_db) <= _MOST_DB:
            raise SettingsError(f"the signal-to-noise ratio is {self.snr_db:g} dB; expected -{_MOST_DB} to {_MOST_DB}")
        for what, rate in (("bandwidth", self.bandwidth), ("downlink rate", self.downlink_rate)):
            if rate is not None and not 1 / _MOST < rate < _MOST:
                raise SettingsError(f"the {what} is {rate:g}; expected more than 0, and less than {_MOST:g}")

    @property
    def rate(self) -> float:
        """Rate from the client to the server in bits per second: Shannon's capacity ``B log2(1 + snr)``."""
        return float(self.bandwidth * math.log1p(10 ** (self.snr_db / 10)) / math.log(2))


@dataclass(frozen=True)
class Cost:
    """Cost of a computation or transmission: energy in joules, and time in seconds."""

    energy: float
    seconds: float


def sending(device: Device, channel: Channel, bits: float) -> Cost:
    """Return the cost of sending ``bits`` bits to the server; the energy is ``E_tx = P_tx bits / rate``."""
    seconds = bits / channel.rate
    return Cost(device.transmit_power * seconds, seconds)


def receiving(device: Device, channel: Channel, bits: float) -> Cost:
    """Return the cost of receiving ``bits`` bits, which is zero if the channel has no downlink rate."""
    seconds = 0.0 if channel.downlink_rate is None else bits / channel.downlink_rate
    return Cost(device.receive_power * seconds, seconds)


def computing(device: Device, macs: float) -> Cost:
    """Return the cost of multiply-accumulate operations: ``kappa cycles f^2`` joules and ``cycles / f`` seconds."""
    cycles = macs * device.cycles_per_mac
    return Cost(device.capacitance * cycles * device.frequency**2, cycles / device.frequency)

"""The network between each client and the server: delay, bandwidth and loss of the connection, for experiments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    NonNegativeFloat,
    PositiveFloat,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from fenchel.common.errors import SettingsError
from fenchel.common.settings.reading import validated
from fenchel.common.settings.section import Section

PresetName: TypeAlias = Literal["none", "hyfdca-257ms", "hyfdca-800ms", "lte", "broadband", "datacentre"]

PRESETS: Final[Mapping[PresetName, Mapping[str, str]]] = MappingProxyType(
    {
        "none": {},
        "hyfdca-257ms": {"rtt": "257.5ms"},
        "hyfdca-800ms": {"rtt": "800ms"},
        "lte": {"rtt": "55ms", "jitter": "10ms", "upload": "10Mbit", "download": "30Mbit"},
        "broadband": {"rtt": "20ms", "jitter": "2ms", "upload": "20Mbit", "download": "100Mbit"},
        "datacentre": {"rtt": "0.5ms", "upload": "1Gbit", "download": "1Gbit"},
    }
)
"""Links with names; ``docs/network.md`` says where the figures come from."""

_SECONDS: Final = MappingProxyType({"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "": 1.0})
_PREFIXES: Final = MappingProxyType({"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9})
# Possessive quantifiers avoid backtracking on long texts.
_NUMBER: Final = r"\s*+((?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:e[+-]?[0-9]++)?)\s*+"


def _seconds(value: Any) -> Any:
    """Read a time with its unit, such as ``257.5ms``; leave anything but text to pydantic."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(_NUMBER + r"(us|ms|s|min|h|)\s*", value)
    if found is None:
        raise ValueError(f"expected seconds, or a time with a unit such as 257.5ms or 2min, given {value!r}")
    return float(found[1]) * _SECONDS[found[2]]


def _bytes_per_second(value: Any) -> Any:
    """Read a rate with its unit, such as ``20Mbit`` or ``1.5MB/s``; leave anything but text to pydantic."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(_NUMBER + r"(?:([kMG]?)(bit|B)(?:/s)?|)\s*", value)
    if found is None:
        # "20Mb" and "20mb" are rejected, because they are ambiguous between bits and bytes.
        raise ValueError(f"expected bytes per second, or a rate with a unit such as 20Mbit or 1.5MB/s, given {value!r}")
    return float(found[1]) * _PREFIXES[found[2] or ""] / (8 if found[3] == "bit" else 1)


def _or_text(number: Mapping[str, float]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "number", **number}, {"type": "string"}]})


Duration = Annotated[NonNegativeFloat, BeforeValidator(_seconds), _or_text({"minimum": 0})]
"""Seconds, or text with a unit: us, ms, s, min, h."""

Interval = Annotated[PositiveFloat, BeforeValidator(_seconds), _or_text({"exclusiveMinimum": 0})]
"""A duration that is not zero."""

Rate = Annotated[PositiveFloat, BeforeValidator(_bytes_per_second), _or_text({"exclusiveMinimum": 0})]
"""Bytes per second, or text with a unit: bit, B, with k, M or G (powers of 1000) before and ``/s`` after it."""


class Link(Section):
    """Link of one client to the server: a preset, figures, or a preset with some figures replaced."""

    preset: PresetName | None = Field(
        None, description="name of a predefined link, whose figures are the defaults of the others (docs/network.md)"
    )
    rtt: Duration = Field(
        0.0, description="round-trip time, half of it each way: seconds, or text with a unit, such as 257.5ms"
    )
    jitter: Duration = Field(
        0.0,
        description="mean of the random addition to the round trip (exponential, half of it each way); bytes are never "
        "reordered",
    )
    upload: Rate | None = Field(
        None,
        description="bandwidth from the client to the server: bytes per second, or text with a unit, such as 20Mbit "
        "or 1.5MB/s; null: no limit",
    )
    download: Rate | None = Field(None, description="bandwidth from the server to the client; null: no limit")
    cut_every: Interval | None = Field(
        None,
        description="mean time until the link is cut, at random (exponential): all its connections are reset; null: "
        "never",
    )
    cut_at: tuple[Duration, ...] = Field(
        (), description="times of further cuts, counted from the first connection over the link"
    )
    cut_for: Duration = Field(5.0, description="duration of a cut")

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        """Write the figures of a preset out, so that the run's settings keep what was imposed."""
        if isinstance(value, str):
            value = {"preset": value}
        if isinstance(value, Mapping):
            for name, figures in PRESETS.items():
                if value.get("preset") == name:
                    return {**figures, **value}
        return value

    @property
    def in_words(self) -> str:
        """Description of the link in one line of text."""
        words: list[str] = [] if self.preset is None else [self.preset]
        words.append(f"round trip {1e3 * self.rtt:g} ms")
        if self.jitter:
            words.append(f"jitter {1e3 * self.jitter:g} ms")
        for name, rate in (("up", self.upload), ("down", self.download)):
            if rate is not None:
                words.append(f"{name} {8e-6 * rate:g} Mbit/s")
        if self.cut_every is not None:
            words.append(f"cut every {self.cut_every:g} s")
        if self.cut_at:
            words.append(f"cut at {', '.join(f'{time:g}' for time in self.cut_at)} s")
        if self.cut_every is not None or self.cut_at:
            words.append(f"for {self.cut_for:g} s")
        return ", ".join(words)


@dataclass(frozen=True)
class _NamedToo:
    """In the JSON Schema: the name of a preset may stand for a whole link."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "enum": list(PRESETS)}, handler(schema)]}


NamedLink = Annotated[Link, _NamedToo()]


class Links(Section):
    """Emulated network between the server and the clients of ``fenchel up``."""

    default: NamedLink | None = Field(
        None,
        description="link of every client that is not named in clients: the name of a preset, or a section; null: "
        "none, straight to the server",
    )
    clients: dict[str, NamedLink] = Field(
        {}, description="links of single clients, by id (client-003) or number (3), in place of the default"
    )

    @field_validator("clients", mode="before")
    @classmethod
    def _numbers_are_names(cls, value: Any) -> Any:
        return {str(key): link for key, link in value.items()} if isinstance(value, Mapping) else value

    def of_clients(self, names: Sequence[str]) -> dict[str, Link]:
        """Return each client's link; clients without one are left out.

        Parameters
        ----------
        names
            Ids of all clients, in the order of their numbers.
        """
        given: dict[str, Link] = {}
        numbered = {str(number): name for number, name in enumerate(names)}
        for key, link in self.clients.items():
            name = numbered.get(key, key)
            if name not in names:
                raise SettingsError(
                    f"{key:.80} is not a client of this run; use a name from {names[0]} to {names[-1]}, or a "
                    f"number from 0 to {len(names) - 1}",
                    key="links.clients",
                )
            if name in given:
                raise SettingsError(
                    f"the client {name} is given twice, by name and by number; give it once", key="links.clients"
                )
            given[name] = link
        links = {name: given.get(name, self.default) for name in names}
        return {name: link for name, link in links.items() if link is not None}


def parse_link(values: Mapping[str, Any], source: str) -> Link:
    """Return the link that words of a command line describe.

    Parameters
    ----------
    source
        Where they came from, for the error.
    """
    return validated(Link, values, source)

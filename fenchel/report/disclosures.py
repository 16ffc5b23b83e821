"""Disclosures of a run as readable rows, from ``disclosures.json`` of the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fenchel.common.errors import CheckpointError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.report.formatting import problem_text

_FORMS = {
    "clear": "in clear",
    "noisy": "with noise",
    "pseudonyms": "pseudonyms",
    "ciphertext": "ciphertext",
    "sealed": "sealed box",
}
_DAMAGED = "the file is damaged or was edited ({}); copy it again from the machine of the server"
_WAYS = {"up": "client to server", "down": "server to client"}

_Direction: TypeAlias = Literal["up", "down"]
_Span: TypeAlias = Annotated[list[int], Field(min_length=2, max_length=2)]


class _Part(BaseModel):
    """Base class for the parts of ``disclosures.json`` (docs/run-folder.md) that reports use."""

    model_config = ConfigDict(strict=True)


class _Message(_Part):
    phase: str
    direction: _Direction
    name: str
    content: str
    dtype: str
    form: str
    key: str
    shape: list[_Span]
    entries: _Span | None
    bytes: _Span
    readers: str
    clients: Literal["all"] | list[str]
    first_round: int
    last_round: int
    times: int


class _Head(_Part):
    message: str
    direction: _Direction
    fields: list[str]
    times: int


class _Group(_Part):
    clients: list[str]
    noise_multiplier: float
    uploads: int
    epsilon_pld: float | None
    epsilon_rdp: float | None


class _Noise(_Part):
    mechanism: str
    delta: float
    groups: list[_Group]


class _PlainNoise(_Part, extra="forbid"):
    mechanism: str
    standard_deviation: float


class _Exporter(_Part):
    exporter: str
    address: str
    shows: str
    readers: str


class _Account(_Part):
    messages: list[_Message]
    heads: list[_Head]
    noise: _Noise | _PlainNoise | None
    exporters: list[_Exporter] = []


def load_disclosures(run: Path) -> dict[str, Any]:
    """Read ``disclosures.json`` of a run, finished or not. Raise ``CheckpointError`` if it is missing or invalid."""
    path = RunFolder(run).disclosures
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        _Account.model_validate(found)
    except OSError as error:
        raise CheckpointError(
            f"the file cannot be read ({error.strerror}); check that {run} is a run folder, and that clients "
            "joined the run",
            source=path,
        ) from None
    except ValidationError as error:
        raise CheckpointError(_DAMAGED.format(problem_text(error)), source=path) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(_DAMAGED.format(error), source=path) from None
    return found


def disclosure_rows(account: dict[str, Any]) -> list[tuple[str, str, str, str, str, str, str, str, int]]:
    """Return a row for each kind of array or number, in the order in which they were first sent.

    The columns are: phase; direction of the message; name of the value; type and size, as a range if sizes differ;
    form in which the value was sent; parties that could read it; clients that sent or received it; range of rounds;
    number of transmissions.
    """
    return [
        (
            each["phase"],
            _WAYS[each["direction"]],
            each["name"],
            _what(each),
            _FORMS.get(each["form"], each["form"]) + (f", key {each['key'][:8]}" if each["key"] else ""),
            each["readers"],
            "all" if each["clients"] == "all" else _some(each["clients"]),
            _span([each["first_round"], each["last_round"]]),
            each["times"],
        )
        for each in account["messages"]
    ]


def head_rows(account: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    """Return a row for each kind of message head: message, direction, fields that were set, number of transmissions."""
    return [
        (each["message"], _WAYS[each["direction"]], ", ".join(each["fields"]), each["times"])
        for each in account["heads"]
    ]


def exporter_rows(account: dict[str, Any]) -> list[str]:
    """Return a sentence for each telemetry exporter of the run."""
    return [
        f"{each['exporter']} at {each['address']}: {each['shows']}, for {each['readers']}"
        for each in account.get("exporters", ())
    ]


def noise_rows(account: dict[str, Any]) -> list[str]:
    """Return a sentence for each group of clients that added the same noise, or one for noise without a guarantee."""
    noise = account["noise"]
    if noise is None:
        return []
    if "groups" not in noise:
        return [f"noise of standard deviation {noise['standard_deviation']:g}, which promises nothing"]
    return [
        f"{_some(each['clients'])}: {noise['mechanism']}, noise multiplier {each['noise_multiplier']:.4g}, "
        f"{each['uploads']} uploads asked for, epsilon {_epsilon(each['epsilon_pld'])} (pld), "
        f"{_epsilon(each['epsilon_rdp'])} (rdp) at delta = {noise['delta']:g}"
        for each in noise["groups"]
    ]


def _epsilon(value: float | None) -> str:
    return "without bound" if value is None else f"{value:.4g}"


def _what(each: dict[str, Any]) -> str:
    shape = " x ".join(_span(side) for side in each["shape"])
    if each["content"] == "scalar":
        return str(each["dtype"])
    if each["content"] == "ciphertexts":
        return f"{shape} encrypted values in {_span(each['bytes'])} bytes"
    given = f", {_span(each['entries'])} given" if each["entries"] else ""
    return f"{each['dtype']} [{shape}{given}]"


def _span(pair: list[int]) -> str:
    return f"{pair[0]:,}" if pair[0] == pair[1] else f"{pair[0]:,} to {pair[1]:,}"


def _some(clients: list[str]) -> str:
    return ", ".join(clients) if len(clients) <= 3 else f"{clients[0]}, {clients[1]} and {len(clients) - 2} more"

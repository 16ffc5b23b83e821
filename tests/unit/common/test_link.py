"""The settings of links: units, presets, and who has which."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from fenchel.common.errors import SettingsError
from fenchel.common.settings.link import PRESETS, Link, Links, PresetName, parse_link
from fenchel.common.settings.run import RunSettings, from_json, json_schema, validate
from fenchel.deploy.launch.names import client_names
from tests.messages import raises

RUN = {
    "rounds": 1,
    "clients": 3,
    "data": {"name": "digits"},
    "objective": {"kind": "softmax"},
    "algorithm": {"name": "fedavg"},
}


def run_with(links: Any) -> RunSettings:
    return validate(RUN | {"links": links})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("257.5ms", 0.2575), ("2 s", 2.0), ("1.5min", 90.0), ("1h", 3600.0), ("500us", 5e-4), ("3", 3.0), (0.8, 0.8)],
)
def test_times_are_seconds_or_have_a_unit(text: str | float, seconds: float) -> None:
    assert Link.model_validate({"rtt": text}).rtt == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20Mbit", 2.5e6),
        ("20 Mbit/s", 2.5e6),
        ("1.5MB/s", 1.5e6),
        ("100kB", 1e5),
        ("1Gbit", 1.25e8),
        ("8bit", 1.0),
        ("9000", 9000.0),
        (9000, 9000.0),
    ],
)
def test_rates_are_bytes_per_second_or_have_a_unit(text: str | float, rate: float) -> None:
    assert Link.model_validate({"upload": text}).upload == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    "values",
    [
        *({"upload": rate} for rate in ("20Mb", "20mbit", "fast", 0, "0Mbit", -1)),  # Mb: bits or bytes?
        *({"rtt": time} for time in ("1 fortnight", "-1ms", "inf", float("nan"), -0.1)),
        {"cut_every": 0},
        {"cut_at": ["soon"]},
        {"preset": "dial-up"},
        {"preset": ["lte"]},
        {"latency": 1},
    ],
)
def test_what_is_no_link_is_refused_and_the_key_named(values: dict[str, Any]) -> None:
    with raises(SettingsError, source="somewhere"):
        parse_link(values, "somewhere")


def test_a_preset_is_written_out_and_its_figures_can_be_changed_one_by_one() -> None:
    assert set(PRESETS) == set(get_args(PresetName))
    paper = parse_link({"preset": "hyfdca-257ms"}, "")
    assert (paper.rtt, paper.upload, paper.download) == (0.2575, None, None)
    lte, slower = parse_link({"preset": "lte"}, ""), parse_link({"preset": "lte", "upload": "1Mbit"}, "")
    assert slower == lte.model_copy(update={"upload": 125000.0})
    assert lte.upload is not None
    assert lte.download is not None
    assert lte.upload < lte.download


def test_the_name_of_a_preset_stands_for_a_link() -> None:
    links = run_with({"default": "lte", "clients": {"client-001": "hyfdca-800ms", 2: {"rtt": "1ms"}}}).links
    assert links is not None
    found = links.of_clients(client_names(3))
    assert [found[name].rtt for name in client_names(3)] == [0.055, 0.8, 0.001]
    links = Links.model_validate({"clients": {"client-002": "none"}})
    assert list(links.of_clients(client_names(3))) == ["client-002"], "the others go straight to the server"
    assert Links().of_clients(client_names(3)) == {}
    with raises(SettingsError, key="links.default", source="settings"):
        run_with({"default": "carrier pigeon"})


def test_settings_survive_json_and_keep_the_figures_that_were_imposed() -> None:
    settings = run_with({"default": "broadband", "clients": {0: {"preset": "lte", "cut_at": ["3s", 9]}}})
    again = from_json(settings.to_json())
    assert again == settings
    kept = json.loads(settings.to_json())["links"]
    assert kept["default"]["upload"] == 2.5e6
    assert kept["clients"]["0"]["cut_at"] == [3.0, 9.0]


@pytest.mark.parametrize("keys", [["client-003"], [3], ["berlin"], ["9" * 5000], [1, "client-001"]])
def test_a_link_of_nobody_and_two_of_one_client_are_refused(keys: list[str | int]) -> None:
    links = Links.model_validate({"clients": dict.fromkeys(keys, "lte")})
    with raises(SettingsError, key="links.clients") as caught:
        links.of_clients(client_names(3))
    assert len(str(caught.value)) < 300


def test_editors_are_told_of_presets_and_of_units() -> None:
    schema = json_schema()["$defs"]
    choices = schema["Links"]["properties"]["default"]["anyOf"]
    assert {"type": "string", "enum": list(PRESETS)} in choices
    assert {"$ref": "#/$defs/Link"} in choices
    assert {"type": "string"} in schema["Link"]["properties"]["rtt"]["anyOf"]

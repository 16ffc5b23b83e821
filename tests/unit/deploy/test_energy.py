"""The command energy: a table, JSON and a map of runs that were made."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fenchel.common.errors import SettingsError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.report.formatting import bytes_text, seconds_text
from tests.conftest import MakeSettings
from tests.messages import raises


def fenchel(*words: str) -> str:
    """Run the command; return what it prints, or raise what it raises."""
    app = application()
    result = CliRunner().invoke(app, ["energy", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def runs(make_settings: MakeSettings, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the folders of three runs with 1, 4 and 16 local steps."""
    folders = []
    for steps in (1, 4, 16):
        algorithm = {"name": "fedavg", "local_steps": steps, "batch_size": 8, "step_size": 0.5}
        settings = make_settings(name=f"steps-{steps}", rounds=12, algorithm=algorithm)
        folder = RunFolder.create(tmp_path_factory.mktemp("runs"), settings.name)
        asyncio.run(run_in_process(settings, folder))
        folders.append(str(folder.path))
    return folders


def test_a_table_says_what_each_run_cost(runs: list[str]) -> None:
    text = fenchel(*runs)
    for part in ("steps-1", "steps-16", "computing", "sending", "10 dB, 1 MHz: 3.459 Mbit/s up"):
        assert part in text
    assert "least energy" not in text  # all do the same rounds, but do not get equally far


def test_a_terminal_of_80_columns_shows_the_units_of_wide_numbers(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    constants = ("--device", "capacitance=1e-36", "--device", "transmit_power=1e-8", "--bandwidth", "10")
    values = json.loads(fenchel(*runs, *constants, "--json"))["runs"]
    text = fenchel(*runs, *constants)
    for each in values:
        assert f" {seconds_text(each['seconds'])} " in text
        assert f" {bytes_text(each['bytes_up'])} " in text


def test_the_least_energy_to_a_target_is_chosen(runs: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "map.png"
    target = ("--target", "0.5", "--figure", "test_accuracy")
    text = fenchel(*runs, *target, "--map", str(picture))
    assert "rounds" in text
    assert "take the least energy, of 1, 4 and 16" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    costs = json.loads(fenchel(*runs, *target, "--json"))
    energies = {run["local_steps"]: run["energy"] for run in costs["runs"]}
    assert costs["choice"]["best"] == min(energies, key=lambda steps: energies[steps])
    assert {run["local_steps"]: run["rounds"] for run in costs["runs"]} == {
        int(steps): rounds for steps, rounds in costs["choice"]["rounds"].items()
    }


def test_a_worse_channel_and_another_device_cost_more(runs: list[str], tmp_path: Path) -> None:
    def joules(*words: str) -> dict[str, float]:
        (run,) = json.loads(fenchel(runs[0], "--json", *words))["runs"]
        return {name: float(run[name]) for name in ("computing", "sending", "receiving", "energy", "seconds")}

    plain = joules()
    assert joules("--snr", "0")["sending"] == pytest.approx(plain["sending"] * 3.459, rel=1e-3)
    assert joules("--bandwidth", "5e5")["sending"] == pytest.approx(2 * plain["sending"])
    file = tmp_path / "device.yaml"
    file.write_text("frequency: 2.0e+9\ntransmit_power: 7\n")
    other = joules("--device", str(file), "--device", "transmit_power=0.4")
    assert other["computing"] == pytest.approx(4 * plain["computing"])
    assert other["sending"] == pytest.approx(2 * plain["sending"])
    faster = joules("--device", "clients={client-000: {frequency: 2.0e+9}}")
    assert plain["computing"] < faster["computing"] < 4 * plain["computing"]
    received = joules("--device", "receive_power=0.1", "--downlink-rate", "1e6")
    assert received["receiving"] > 0
    assert received["seconds"] > plain["seconds"]
    assert joules("--macs", "1280")["computing"] == pytest.approx(2 * plain["computing"])


def test_a_target_that_is_never_reached_is_said(runs: list[str]) -> None:
    assert "never" in fenchel(*runs, "--target", "0.9999", "--figure", "test_accuracy")


@pytest.mark.parametrize(
    "words",
    [
        ["--map", "x.png"],
        ["--device", "receive_power=0.1"],
        ["--device", "nowhere.yaml"],
        ["--device", "frequency=[1"],
        ["--device", "clients={client-999: {frequency: 5.0e+8}}"],
        ["--target", "nan"],
        ["--target", "0.5", "--map", "x.png", "--snrs", "1,loud"],
        ["--target", "0.5", "--map", "x.png", "--bandwidths", "0"],
    ],
    ids=str,
)
def test_words_that_mean_nothing_are_refused(runs: list[str], words: list[str]) -> None:
    with raises(SettingsError):
        fenchel(*runs, *words)

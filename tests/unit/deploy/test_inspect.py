"""What is looked at is printed so that nothing of it is cut."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from fenchel.client.probe import ProbeResult
from fenchel.common.errors import SettingsError
from fenchel.common.settings.registry import builtin_settings
from fenchel.deploy.cli import inspect
from fenchel.deploy.cli.main import application


def measured(client: str) -> ProbeResult:
    return ProbeResult(
        client=client,
        server="somewhere:7443",
        pings=50,
        rtt_p50=0.25751,
        rtt_p90=0.26001,
        rtt_p99=1.31234,
        jitter=0.01234,
        clock_offset=-1234.5678,
        clock_uncertainty=0.12345,
        upload=12.34e6,
        download=567.8e6,
    )


def printed(*clients: str, width: int) -> str:
    console = Console(file=StringIO(), width=width, highlight=False)
    inspect._show_probes([measured(client).cells() for client in clients], console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("clients", [("hospital-north",), ("hospital-north", "[red]hospital", "x" * 60)])
def test_no_number_of_a_probe_loses_its_unit(clients: tuple[str, ...], width: int) -> None:
    text = printed(*clients, width=width)
    for client in clients:
        for cell in measured(client).cells():
            assert text.count(cell) >= 1
    assert "…" not in text
    assert text.count("257.51 ms") == len(clients)


def test_several_clients_have_a_row_each_where_there_is_room() -> None:
    assert len(printed("one", "two", width=200).splitlines()) == 3
    assert len(printed("one", width=200).splitlines()) == 8


def listed(*words: str) -> Result:
    return CliRunner().invoke(application(), ["algorithms", *words], env={"COLUMNS": "80"})


def test_the_overview_has_one_line_for_each_algorithm() -> None:
    lines = [line.rstrip() for line in listed().stdout.splitlines()]
    assert [line.split(maxsplit=1)[0] for line in lines[1:-2]] == list(builtin_settings())
    assert all(len(line) <= 80 and line.endswith(".") for line in lines[1:-2])


def test_an_algorithm_is_shown_with_its_paper_and_settings() -> None:
    text = listed("fedavg").stdout
    assert text.startswith("fedavg  Federated averaging")
    assert "Decentralized Data" in text
    assert "step_size" in text
    assert "scaffold" not in text
    assert set(json.loads(listed("--json").stdout)) == set(builtin_settings())
    assert set(json.loads(listed("fedavg", "--json").stdout)) == {"fedavg"}


def test_an_unknown_algorithm_is_refused_with_the_one_that_may_be_meant() -> None:
    error = listed("fedav").exception
    assert isinstance(error, SettingsError)
    assert "did you mean fedavg?" in str(error)

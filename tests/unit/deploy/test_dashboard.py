"""The dashboard shows what the run folder holds and how the clients stand, and no more."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fenchel.algorithms.registry import server_half
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.address import Address
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.deploy.monitoring.dashboard import Dashboard
from fenchel.deploy.monitoring.rendering import page
from fenchel.server.telemetry.observer import Observers, OngoingRun
from tests.observing import Calling

SETTINGS: Mapping[str, Any] = {
    "name": "watched",
    "rounds": 6,
    "clients": 3,
    "data": {"name": "digits", "samples": 300},
    "objective": {"kind": "softmax", "l2": 1e-4},
    "algorithm": {"name": "fedavg", "local_epochs": 1, "batch_size": 64, "step_size": 0.5},
}


def opened(folder: RunFolder, settings: RunSettings) -> Dashboard:
    return Dashboard(folder, settings.rounds, Address("127.0.0.1", 0))


def got(page: Dashboard, path: str = "") -> bytes:
    with urllib.request.urlopen(page.url + path, timeout=30) as response:
        body: bytes = response.read()
        return body


def fleet(page: Dashboard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(got(page, "fleet"))
    return found


def test_the_fleet_is_shown_as_it_stands_while_a_round_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, folder = validate(SETTINGS), RunFolder.create(tmp_path, "watched")
    seen: list[dict[str, Any]] = []
    half: Any = server_half(settings.algorithm.name)

    class Held(half):  # type: ignore[misc]
        """The algorithm's own half, which begins no round after the fourth before the fleet was seen."""

        async def round(self, t: int) -> None:
            async with asyncio.timeout(60):
                while t == 5 and not seen:
                    await asyncio.sleep(0.01)
            await super().round(t)

    monkeypatch.setattr("fenchel.server.coordinator.server_half", lambda name: Held)
    conducting: list[OngoingRun] = []
    with opened(folder, settings) as dashboard:

        def begins(t: int) -> None:
            if t == 4:  # asked from another thread, answered by this event loop in the middle of the round
                late = conducting[0].admission.members["client-001"]
                late.availability.record_miss("another phase", late.streams, patience=1, deadline=60.0)
                dashboard.waiting("waiting for 1 more")
                threading.Thread(target=lambda: seen.append(fleet(dashboard))).start()

        async def run() -> None:
            await run_in_process(
                settings, folder, observer=Observers(dashboard, Calling(round_begun=begins, begun=conducting.append))
            )

        asyncio.run(run())
        (during,) = seen
        after = json.loads(got(dashboard, "data"))
    assert during["running"] is True
    assert during["waits"] == "waiting for 1 more"
    assert [client["awaited"] for client in during["clients"]] == [True, False, True]
    assert (during["rounds"], during["total"], during["expected"]) == (6, 3, 3)
    assert 4 <= during["round"] <= 6
    # A round is put into the tables while the clients work on the next one.
    assert during["round"] - 2 <= during["done"] <= during["round"]
    assert (during["left_s"] is None) == (during["done"] < 3)
    assert during["counts"] == {"connected": 3}
    assert {client["client"] for client in during["clients"]} == {"client-000", "client-001", "client-002"}
    for client in during["clients"]:
        assert client["samples"] == 100
        assert client["network_s"] is None or client["network_s"] >= 0
        assert client["question"] is None or client["question"]["phase"] in ("train", "fenchel.evaluate")
    (run_shown,) = after["charts"]["runs"]
    assert run_shown["curves"]["objective"]["round"] == [1, 2, 3, 4, 5, 6]
    assert "6 rounds" in after["body"]


def test_the_page_needs_nothing_from_elsewhere_and_everything_that_it_names_is_there(tmp_path: Path) -> None:
    settings, folder = validate(SETTINGS), RunFolder.create(tmp_path, "watched")
    folder.settings.write_text(settings.to_yaml())
    with opened(folder, settings) as dashboard:
        whole = got(dashboard).decode()
        named = re.findall(r'(?:src|href)="([^"]*)"', whole)
        assert set(named) == {*("/page.css", "/dashboard.css", "/plotly.js", "/page.js", "/dashboard.js"), "data:,"}
        for path in named:
            if path.startswith("/"):
                assert got(dashboard, path[1:])
        assert b"Plotly" in got(dashboard, "plotly.js")


@pytest.mark.slow
def test_before_a_run_has_begun_and_after_its_end_there_is_an_answer(tmp_path: Path) -> None:
    settings, folder = validate(SETTINGS), RunFolder.create(tmp_path, "watched")
    with opened(folder, settings) as dashboard:
        assert fleet(dashboard)["total"] == 0
        with pytest.raises(urllib.error.HTTPError) as early:
            got(dashboard)
        assert early.value.code == 503
        assert b"at the moment" in early.value.read()
        early.value.close()
        asyncio.run(run_in_process(settings, folder, observer=dashboard))
        whole = got(dashboard).decode()
        assert "Completed" in whole


def test_paths_of_this_machine_are_not_on_the_page(tmp_path: Path) -> None:
    table = tmp_path / "very-private-place" / "patients.csv"
    table.parent.mkdir()
    table.write_text("age,outcome\n" + "".join(f"{age},{age % 2}\n" for age in range(40)))
    settings = validate(
        {
            **SETTINGS,
            "clients": 2,
            "data": {"file": str(table), "label": "outcome"},
            "objective": {"kind": "logistic", "l2": 0.1},
        }
    )
    folder = RunFolder.create(tmp_path / "runs", "watched")
    folder.settings.write_text(settings.to_yaml())
    assert str(table) in folder.settings.read_text()
    shown = page(folder.path)["body"]
    assert "patients.csv" in shown
    assert "very-private-place" not in shown
    assert str(tmp_path) not in shown


def test_a_port_that_is_taken_is_given_up_for_a_free_one_unless_it_was_asked_for(tmp_path: Path) -> None:
    settings, folder = validate(SETTINGS), RunFolder.create(tmp_path, "watched")
    with Dashboard(folder, 6) as first, Dashboard(folder, 6) as second:
        assert first.url != second.url
        assert first.is_private
        assert second.is_private
        assert fleet(second)["rounds"] == settings.rounds


@pytest.mark.slow
def test_a_rendering_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    settings, folder = validate(SETTINGS), RunFolder.create(tmp_path, "watched")
    folder.settings.write_text(settings.to_yaml())
    with opened(folder, settings) as dashboard:
        got(dashboard)
        process = dashboard._renderer._process
        assert process is not None
        process.kill()
        process.wait()
        dashboard._page.forget()
        assert b"watched" in got(dashboard)  # as it was
        dashboard._page.forget()
        assert b"watched" in got(dashboard)
        assert dashboard._renderer._process is not None
        assert dashboard._renderer._process.pid != process.pid

"""Runs from Python: on a loop of the caller's, stopped and gone on with, and shown in notebooks."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz

import fenchel
from fenchel.common.crypto.residues.interface import Residues
from fenchel.common.errors import CheckpointError, DataError, JoinRefusedError, RunStoppedError, SettingsError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.given_data import OwnFiles
from fenchel.deploy.launch.names import client_names
from fenchel.deploy.monitoring.notebook import NotebookProgress
from fenchel.keys.paillier.crt import CrtOwner
from fenchel.server.telemetry.summary import Summary
from tests.messages import raises

ROOT = Path(__file__).parents[3]
RNG = np.random.default_rng(4)
X = RNG.normal(size=(60, 3))
Y = (X.sum(axis=1) > 0).astype(int)
SETTINGS: dict[str, Any] = {
    "name": "python",
    "rounds": 30,
    "clients": 2,
    "objective": {"kind": "logistic", "l2": 0.1},
    "algorithm": {"name": "scaffold", "step_size": 0.1, "local_steps": 3},
    "checkpoint": {"every": 1},
}


class StopAfter(fenchel.Observer):
    """Cancels the task of the run after a round."""

    def __init__(self, t: int) -> None:
        self.t, self.task = t, asyncio.current_task()

    def round_ended(self, row: Any) -> None:
        if row["round"] == self.t:
            assert self.task is not None
            self.task.cancel()


def test_an_argument_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match=r"^up\(\) got an unexpected keyword argument 'setings'"):
        fenchel.up(setings="quickstart")  # type: ignore[call-arg]


def test_both_forms_take_the_same_arguments() -> None:
    assert inspect.signature(fenchel.up) == inspect.signature(fenchel.up_async)
    assert fenchel.up.__name__ == "up"
    assert not inspect.iscoroutinefunction(fenchel.up)


async def test_a_run_is_done_on_the_loop_of_the_caller(tmp_path: Path) -> None:
    first, second = await asyncio.gather(
        fenchel.up_async(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path),
        fenchel.up_async(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path),
    )
    assert first.model.tobytes() == second.model.tobytes()
    assert fenchel.up(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path).model.tobytes() == first.model.tobytes()


@pytest.mark.parametrize("own", [False, True], ids=["divided", "own"])
async def test_a_cancelled_run_is_saved_and_goes_on(own: bool, tmp_path: Path) -> None:
    data: Any = [(X[:20], Y[:20]), (X[20:], Y[20:])] if own else (X, Y)
    whole = await fenchel.up_async(SETTINGS, data=data, in_process=True, runs=tmp_path / "whole")

    async def stopped() -> None:
        await fenchel.up_async(SETTINGS, data=data, in_process=True, runs=tmp_path / "cut", observer=StopAfter(5))

    with pytest.raises(asyncio.CancelledError) as cancelled:
        await asyncio.create_task(stopped())
    (folder,) = (tmp_path / "cut").iterdir()
    assert f"fenchel.up(resume='{folder}')" in cancelled.value.__notes__[0]
    run = fenchel.Run(folder)
    assert not run.completed
    assert run.rounds < 30
    resumed = await fenchel.up_async(resume=run, in_process=True)
    assert resumed.completed
    assert resumed.model.tobytes() == whole.model.tobytes()


def test_a_completed_run_is_left_as_it_is_until_it_has_more_rounds(tmp_path: Path) -> None:
    run = fenchel.up(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    assert fenchel.up(resume=run, in_process=True).figures == run.figures
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
    file = run.path / "settings.yaml"
    file.write_text(file.read_text().replace("rounds: 30\n", "rounds: 35\n"))
    longer = fenchel.up(resume=run, in_process=True)
    assert longer.rounds == 35
    whole = fenchel.up(SETTINGS | {"rounds": 35}, data=(X, Y), in_process=True, runs=tmp_path)
    assert longer.model.tobytes() == whole.model.tobytes()


@pytest.mark.parametrize("processes", [None, 1, 2])
def test_a_run_goes_on_without_a_lost_client_where_the_settings_say_so(processes: int | None, tmp_path: Path) -> None:
    settings = SETTINGS | {"participation": {"on_lost_state": "continue"}}
    run = fenchel.up(settings, data=(X, Y), in_process=True, runs=tmp_path)
    file = run.path / "settings.yaml"
    file.write_text(file.read_text().replace("rounds: 30\n", "rounds: 500\n"))
    shutil.rmtree(run.path / "journals" / run.path.name / "client-001")
    longer = fenchel.up(resume=run, in_process=processes is None, processes=processes)
    assert (longer.completed, longer.rounds) == (True, 500)
    assert longer.metrics_table["counted"].to_pylist()[-1] == 1


def test_data_that_do_not_fit_end_the_run_although_another_client_shares_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fenchel.server.membership.admission._FAREWELL_SECONDS", 0.1)
    for name, columns in (("a", "age,outcome"), ("b", "size,outcome")):
        (tmp_path / f"{name}.csv").write_text(f"{columns}\n40,1\n50,0\n")
    settings = SETTINGS | {"data": {"name": "own", "classes": [0, 1]}}
    with raises(JoinRefusedError):
        fenchel.up(settings, data=[str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], label="outcome", processes=1)


@pytest.mark.parametrize("processes", [None, pytest.param(2, marks=pytest.mark.cluster)])
def test_a_run_that_a_client_cannot_take_part_in_ends_with_its_error_and_has_it(
    processes: int | None, tmp_path: Path
) -> None:
    for name, age in (("a", "40"), ("b", "old")):
        (tmp_path / f"{name}.csv").write_text(f"age,outcome\n{age},1\n50,0\n")
    settings = SETTINGS | {"data": {"name": "own", "classes": [0, 1]}}
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    with raises(DataError) as failed:
        fenchel.up(
            settings,
            data=files,
            label="outcome",
            in_process=processes is None,
            processes=processes,
            runs=tmp_path / "runs",
        )
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["reason"] == str(failed.value)
    assert "b.csv, row 1, column 'age'" in str(failed.value)


@pytest.mark.parametrize("stopped", ["begun", "round_ended"])
def test_keys_are_kept_only_for_a_run_that_can_go_on(stopped: str, tmp_path: Path) -> None:
    class Stopping(fenchel.Observer):
        """Ends the run with an error."""

    def stop(*_: object) -> None:
        raise RunStoppedError("enough of it")

    observer = Stopping()
    setattr(observer, stopped, stop)
    with raises(RunStoppedError):
        fenchel.up("quickstart", observer=observer, in_process=True, runs=tmp_path, progress=False)
    (folder,) = tmp_path.iterdir()
    assert (folder / "journals" / "keys").exists() == (stopped == "round_ended")


def test_an_error_of_the_caller_has_no_other_error_above_it() -> None:
    with raises(DataError) as failed:
        fenchel.up(SETTINGS, data="no-such-file.csv", label="y")
    assert failed.value.__context__ is None


@pytest.mark.cluster
def test_clients_of_one_process_encrypt_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    batches: list[int] = []
    decrypt, decrypted = CrtOwner.decrypt, CrtOwner._decrypted

    def asking(owner: CrtOwner, ciphertexts: Residues) -> list[mpz]:
        asked.append(len(ciphertexts))
        return decrypt(owner, ciphertexts)

    def decrypting(owner: CrtOwner, numbers: Sequence[mpz]) -> list[mpz]:
        batches.append(len(numbers))
        return decrypted(owner, numbers)

    monkeypatch.setattr(CrtOwner, "decrypt", asking)
    monkeypatch.setattr(CrtOwner, "_decrypted", decrypting)
    small = ["rounds=3", "algorithm.encryption.security=112"]
    together = fenchel.up("quickstart", overrides=small, in_process=True, runs=tmp_path)
    assert sum(batches) == sum(asked) > 0
    assert len(batches) < len(asked)
    monkeypatch.undo()
    in_one = fenchel.up("quickstart", overrides=small, processes=1, runs=tmp_path)
    each = fenchel.up("quickstart", overrides=small, runs=tmp_path)
    assert in_one.model.tobytes() == each.model.tobytes() == together.model.tobytes()


def test_an_encrypted_run_whose_keys_are_gone_is_left_as_it_is(tmp_path: Path) -> None:
    small = ["rounds=1", "algorithm.encryption.security=112"]
    run = fenchel.up("quickstart", overrides=small, in_process=True, runs=tmp_path)
    file = run.path / "settings.yaml"
    file.write_text(file.read_text().replace("rounds: 1\n", "rounds: 2\n"))
    again = fenchel.up(resume=run, in_process=True)
    assert (again.completed, again.rounds) == (True, 1)


def test_a_resumed_run_finds_the_files_of_more_than_a_thousand_clients_in_their_order(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "many")
    folder.data.mkdir()
    names = [f"{name}.npz" for name in client_names(1002)]
    for name in reversed(names):
        (folder.data / name).touch()
    found = OwnFiles.written(folder, None, None)
    assert found is not None
    assert [path.name for path in found.paths] == names


def test_what_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    with raises(SettingsError):
        fenchel.up()
    with raises(SettingsError, key="resume"):
        fenchel.up(SETTINGS, resume=tmp_path)
    with raises(CheckpointError, source=str(tmp_path)):
        fenchel.up(resume=tmp_path)
    run = fenchel.up(SETTINGS | {"rounds": 1}, data=(X, Y), in_process=True, runs=tmp_path)
    with raises(SettingsError, key="data"):
        fenchel.up(resume=run, data=(X, Y), in_process=True)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", [False, True], ids=["script", "with a loop"])
def test_an_interrupted_program_leaves_a_run_that_goes_on(notebook: bool, tmp_path: Path) -> None:
    call = "fenchel.up('quickstart', overrides=['rounds=100000', 'algorithm.privacy=none'], in_process=True)"
    code = f"import asyncio, fenchel\nasync def cell():\n    {call}\nasyncio.run(cell())" if notebook else call
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell may have it ignored
    words = [sys.executable, "-c", f"{heard}\n{code if notebook else f'import fenchel; {code}'}"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            while not list(tmp_path.glob("runs/*/checkpoint/previous")):
                assert program.poll() is None, program.communicate()
                time.sleep(0.05)
            program.send_signal(signal.SIGINT)
            _, said = program.communicate(timeout=60)
        finally:
            program.kill()
    assert "KeyboardInterrupt" in said
    (folder,) = (tmp_path / "runs").iterdir()
    run = fenchel.Run(folder)
    assert (run.state, run.reason) == ("stopped", "interrupted")
    assert f"go on with fenchel.up(resume={str(folder.relative_to(tmp_path))!r})." in said


class Display:
    """Stands for the display of a notebook."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, what: Any, display_id: bool) -> Display:
        self.update(what)
        return self

    def update(self, what: Any) -> None:
        self.shown.append(what._repr_html_())


def test_a_notebook_shows_progress_and_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fenchel.deploy.monitoring.notebook._PAUSE", 0)
    display = Display()
    fenchel.up(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path, observer=NotebookProgress(display, 30))
    rounds = [text for text in display.shown if " left" in text]
    assert rounds
    assert re.search(r'value="\d+" max="30".* round \d+ of 30 · objective \d.* · about .* left', rounds[-1])
    assert re.search(r"30 rounds · objective .* · [\d.]+ s$", display.shown[-1])
    progress = NotebookProgress(display, 30)
    progress.ended(Summary("run", False, 3, 1.0, "<lost>", {}))
    assert "stopped after 3 rounds" in display.shown[-1]


def test_a_cell_shows_progress_wherever_it_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    display = Display()
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    fenchel.up(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path)
    assert "30 rounds" in display.shown[-1]


def test_a_terminal_shows_progress_unless_it_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for force, progress in ((None, True), ("1", False), ("1", True)):
        if force is not None:
            monkeypatch.setenv("FORCE_COLOR", force)
        run = fenchel.up(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path, progress=progress)
        shown = capsys.readouterr()
        assert not shown.out
        assert bool(shown.err) == (force is not None and progress)
    assert run.path.name in shown.err
    assert "round 30 of 30" in shown.err


def test_a_run_has_a_log_and_a_program_hears_no_more_than_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program_log: logging.Logger
) -> None:
    run = fenchel.up(SETTINGS, data=(X, Y), in_process=True, runs=tmp_path)
    entries = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert {entry["level"] for entry in entries} == {"info"}
    assert not caplog.records
    assert (program_log.level, program_log.propagate, program_log.handlers) == (logging.NOTSET, True, [])


def test_a_run_is_resumed_from_another_folder_with_the_same_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder, sign in ((here, 1), (elsewhere, -1)):
        folder.mkdir()
        rows = "\n".join(f"{sign * a:.3f},{b:.3f},{label}" for (a, b, _), label in zip(X, Y, strict=True))
        (folder / "own.csv").write_text(f"a,b,label\n{rows}\n")
    monkeypatch.chdir(here)
    settings = SETTINGS | {"rounds": 4, "data": {"file": "own.csv"}}
    whole = fenchel.up(settings, in_process=True, runs=tmp_path / "whole")

    class Enough(fenchel.Observer):
        def round_ended(self, row: Any) -> None:
            if row["round"] == 2:
                raise fenchel.FenchelError("enough")

    with raises(fenchel.FenchelError):
        fenchel.up(settings, in_process=True, runs=tmp_path / "parts", observer=Enough())
    (begun,) = (tmp_path / "parts").iterdir()
    monkeypatch.chdir(elsewhere)
    resumed = fenchel.up(resume=begun, in_process=True)
    assert (resumed.path / "model.npz").read_bytes() == (whole.path / "model.npz").read_bytes()


def test_the_name_of_a_file_may_look_like_a_pattern(tmp_path: Path) -> None:
    for name in ("h[1].csv", "h1.csv"):
        (tmp_path / name).touch()
    assert OwnFiles.of_patterns([str(tmp_path / "h[1].csv")], None, None).paths == [tmp_path / "h[1].csv"]
    assert OwnFiles.of_patterns([str(tmp_path / "h[12].csv")], None, None).paths == [tmp_path / "h1.csv"]

"""Client processes of a deployment: which ends are final, and which lead to another start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fenchel.common.errors import INTERRUPTED, DataError, FenchelError, RunStoppedError, SettingsError
from fenchel.common.settings.run import load, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch import deployment as module
from fenchel.deploy.launch.bundle import Bundle
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements, Site
from tests.messages import raises

KILLED = -9


class Ended:
    """A process that has ended."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    async def ended(self) -> int | None:
        return self.code


class Launcher:
    """An engine whose processes end as a list says."""

    def __init__(self, codes: Sequence[int | None], words: str = "") -> None:
        self.codes: Iterator[int | None] = iter(codes)
        self.words = words
        self.started = 0

    async def start(self, process: ClientProcess) -> Ended:
        with process.log.open("a") as log:
            log.write(self.words)
        self.started += 1
        return Ended(next(self.codes))


async def started(codes: Sequence[int | None], folder: Path, words: str = "", clients: Sequence[str] = ("a",)) -> int:
    """Run a client process whose starts end with these codes and words; return how often it was started."""
    launcher: Any = Launcher(codes, words)
    process = ClientProcess(number=0, words=(), bundle=Bundle(identities=dict.fromkeys(clients)), log=folder / "log")
    await Deployment(load(Path("quickstart"), []), RunFolder(folder), 4)._run_clients(launcher, process)
    return int(launcher.started)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.0,))


PRIVATE = {"mechanism": "clip-update", "noise_multiplier": 1.0, "clip": 1.0}


@pytest.mark.parametrize("privacy", [None, PRIVATE], ids=["plain", "private"])
async def test_journals_with_privacy_ledgers_are_shared_and_kept(
    privacy: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an algorithm whose clients keep no state of their own."""
    removed, stateless = [], []

    class Engine:
        async def open(self, required: Requirements) -> Site:
            stateless.append(required.stateless)
            return Site(listen="127.0.0.1", dial="localhost", state="")

        async def close(self, *, remove_journals: bool) -> None:
            removed.append(remove_journals)

    async def conducted(*_: Any) -> None:
        pass

    monkeypatch.setattr(Deployment, "_conduct", conducted)
    launcher: Any = Engine()
    settings = load(Path("fedavg-digits"), []).model_dump() | {"differential_privacy": privacy}
    await Deployment(validate(settings), RunFolder.create(tmp_path, "run"), 4, launcher=launcher)._bring_up()
    assert stateless == removed == [privacy is None]


@pytest.mark.parametrize("codes", [[0], [KILLED, 0], [None, 0], [INTERRUPTED, KILLED, 0], [KILLED] * 3 + [0]])
async def test_a_process_that_was_killed_or_ended_from_outside_is_started_again(
    codes: Sequence[int | None], tmp_path: Path
) -> None:
    assert await started(codes, tmp_path) == len(codes)


@pytest.mark.parametrize("codes", [[SettingsError.exit_code], [KILLED, 1], [KILLED] * 4, [INTERRUPTED] * 4])
async def test_an_error_of_its_own_and_a_fourth_end_stop_the_run(codes: Sequence[int | None], tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError):
        await started(codes, tmp_path)


@pytest.mark.parametrize(
    ("code", "words", "kind", "said"),
    [
        (3, "WARNING odd\nerror: a.csv, row 2: no number", DataError, "client a: a.csv, row 2: no number"),
        (3, "error: many:\n  a\n  b", DataError, "client a: many:\n  a\n  b"),
        (3, "no error of the command", RunStoppedError, "the process of a ended with code 3: no error of the command"),
        (1, "error: odd", RunStoppedError, "the process of a ended with code 1: error: odd"),
        (77, "error: odd", RunStoppedError, "the process of a ended with code 77: error: odd"),
        (KILLED, "error: odd", RunStoppedError, "the process of a was killed by signal 9 (Killed)"),
    ],
)
async def test_a_process_that_ends_with_an_error_of_fenchel_ends_the_run_with_it(
    code: int, words: str, kind: type[FenchelError], said: str, tmp_path: Path
) -> None:
    with raises(FenchelError) as failed:
        await started([code] * 4, tmp_path, words)
    assert type(failed.value) is kind
    assert str(failed.value).startswith(said)


async def test_an_error_of_a_process_with_several_clients_is_none_of_a_single_one(tmp_path: Path) -> None:
    with raises(DataError) as failed:
        await started([3] * 4, tmp_path, "error: a.csv, row 2: no number", ("a", "b"))
    assert (failed.value.client, str(failed.value)) == ("", "the process of a to b: a.csv, row 2: no number")


@pytest.mark.parametrize("processes", [0, -1, 1.5])
def test_a_number_of_processes_that_cannot_be_is_refused(processes: Any, tmp_path: Path) -> None:
    with raises(SettingsError, key="processes"):
        Deployment(load(Path("quickstart"), []), RunFolder(tmp_path), 4, processes=processes).check()


async def test_a_resumed_run_shows_no_traceback_of_the_time_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    deployment = Deployment(load(Path("quickstart"), []), RunFolder(tmp_path), 4, say=said.append)
    log = tmp_path / "clients" / "client-000.log"
    log.parent.mkdir()

    async def stopping(deployment: Deployment) -> None:
        with log.open("a") as file:
            file.write(f"Traceback (most recent call last):\n  line\nKeyError: {len(said)}\n")
        raise RunStoppedError("stopped")

    monkeypatch.setattr(Deployment, "_bring_up", stopping)
    for _ in range(2):
        with raises(RunStoppedError):
            await deployment.run()
    assert [words.splitlines()[-1] for words in said] == ["KeyError: 0", "KeyError: 1"]

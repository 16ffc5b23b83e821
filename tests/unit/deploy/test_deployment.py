"""Client processes of a deployment: which ends are final, and which lead to another start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fenchel.common.errors import INTERRUPTED, RunStoppedError, SettingsError
from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch import deployment as module
from fenchel.deploy.launch.bundle import Bundle
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.launchers.interface import ClientProcess

KILLED = -9


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    async def ended(self) -> int:
        return self.code


class Launcher:
    """An engine whose processes end as a list says."""

    def __init__(self, codes: list[int]) -> None:
        self.codes: Iterator[int] = iter(codes)
        self.started = 0

    async def start(self, process: ClientProcess) -> Ended:
        process.log.touch()
        self.started += 1
        return Ended(next(self.codes))


async def started(codes: list[int], folder: Path) -> int:
    """Run a client process whose starts end with these codes; return how often it was started."""
    launcher: Any = Launcher(codes)
    process = ClientProcess(number=0, words=(), bundle=Bundle(identities={"a": None}), log=folder / "log")
    await Deployment(load(Path("quickstart"), []), RunFolder(folder), 4)._run_clients(launcher, process)
    return int(launcher.started)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.0,))


@pytest.mark.parametrize("codes", [[0], [KILLED, 0], [INTERRUPTED, KILLED, 0], [KILLED] * 3 + [0]])
async def test_a_process_that_was_killed_or_ended_from_outside_is_started_again(
    codes: list[int], tmp_path: Path
) -> None:
    assert await started(codes, tmp_path) == len(codes)


@pytest.mark.parametrize("codes", [[SettingsError.exit_code], [KILLED, 1], [KILLED] * 4, [INTERRUPTED] * 4])
async def test_an_error_of_its_own_and_a_fourth_end_stop_the_run(codes: list[int], tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError):
        await started(codes, tmp_path)

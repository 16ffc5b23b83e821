"""Commands that stand for client processes elsewhere: only a report of their own says how they ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fenchel.deploy.launch.bundle import Bundle
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.interface import ClientProcess
from fenchel.deploy.launch.launchers.piped import start


def process(folder: Path) -> ClientProcess:
    return ClientProcess(number=0, words=(), bundle=Bundle(identities={"a": None}), log=folder / "log")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo 0", 0),
        ("echo 7; exit 1", 7),
        ("echo welcome; echo 3", 3),
        ("exit 0", None),
        ("echo 0 >&2", None),
        ("echo 0; echo more", None),
        ("printf 0", None),
        ("echo 1234", None),
        ("kill -9 $$", None),
    ],
)
async def test_the_code_is_that_of_the_report(script: str, code: int, tmp_path: Path) -> None:
    started = await start(["sh", "-c", f"read bundle; {script}"], process(tmp_path))
    assert await started.ended() == code


async def test_it_ends_with_its_standard_input_or_at_once(tmp_path: Path) -> None:
    waiting = await start(["sh", "-c", "cat >/dev/null; echo 0"], process(tmp_path))
    waiting.stop()
    assert await waiting.ended() == 0
    deaf = await start(["sleep", "600"], process(tmp_path))
    deaf.stop(now=True)
    assert await deaf.ended() is None


async def test_a_start_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    """The bundle is larger than a pipe, and is not read."""
    large = ClientProcess(number=0, words=(), bundle=Bundle(identities={"a" * 200_000: None}), log=tmp_path / "log")
    ended = tmp_path / "ended"
    starting = asyncio.create_task(start(["sh", "-c", f"sleep 1; cat >/dev/null; touch {ended}"], large))
    await asyncio.sleep(0.3)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    for _ in range(600):
        if ended.exists():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it still waits for the end of its standard input")


async def test_a_command_that_reads_nothing_does_not_outlive_its_cancelled_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a step of Slurm that waits for a node. The bundle is larger than a pipe."""
    monkeypatch.setattr(piped, "_GRACE", 0.2)
    large = ClientProcess(number=0, words=(), bundle=Bundle(identities={"a" * 200_000: None}), log=tmp_path / "log")
    number = tmp_path / "number"
    starting = asyncio.create_task(start(["sh", "-c", f"echo $$ >{number}; exec sleep 600"], large))
    while not (number.exists() and number.read_text()):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)

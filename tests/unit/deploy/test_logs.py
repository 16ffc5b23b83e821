"""A log on a full disk: people hear of it once, nothing else fails of it, and no stack trace is shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from deploy.logs import log_to_file

FULL = Path("/dev/full")  # every write to it fails as on a full disk

log = logging.getLogger("fenchel.tests")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told_once_and_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_file(FULL):
        log.error("one")
        log.error("two")
    told = capsys.readouterr().err
    assert told.count("the log cannot be written (No space left on device)") == 1
    assert str(FULL) in told
    assert "Traceback" not in told


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_the_error_that_ended_the_run_is_the_one_that_is_shown() -> None:
    def run() -> None:
        with log_to_file(FULL):
            log.error("one")
            raise KeyError("of the run")

    with pytest.raises(KeyError, match="of the run"):
        run()


def test_a_log_with_room_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_file(tmp_path / "log.jsonl"):
        log.error("one")
    assert "cannot be written" not in capsys.readouterr().err
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["one"]

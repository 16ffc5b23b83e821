"""A full disk is told once and fails nothing else; words of others in a log are short, and forge no line."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fenchel.deploy.launch.logs import log_to_file, log_to_terminal

FULL = Path("/dev/full")  # every write to it fails as on a full disk

log = logging.getLogger("fenchel.tests")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.usefixtures("program_log")
def test_a_full_disk_is_told_once_and_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_file(FULL):
        log.error("one")
        log.error("two")
    told = capsys.readouterr().err
    assert told.count("the log cannot be written (No space left on device)") == 1
    assert str(FULL) in told
    assert "Traceback" not in told


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.usefixtures("program_log")
def test_the_error_that_ended_the_run_is_the_one_that_is_shown() -> None:
    def run() -> None:
        with log_to_file(FULL):
            log.error("one")
            raise KeyError("of the run")

    with pytest.raises(KeyError):
        run()


@pytest.mark.usefixtures("program_log")
def test_a_log_with_room_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_file(tmp_path / "log.jsonl"):
        log.error("one")
    assert "cannot be written" not in capsys.readouterr().err
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["one"]


def test_handlers_of_a_program_get_what_they_got_without_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program_log: logging.Logger
) -> None:
    with log_to_file(tmp_path / "one.jsonl"):
        with log_to_file(tmp_path / "two.jsonl"):  # another run
            log.info("for the files")
            log.warning("for all")
        log.info("for one file")
    assert [record.getMessage() for record in caplog.records] == ["for all"]
    assert len((tmp_path / "one.jsonl").read_text().splitlines()) == 3
    assert len((tmp_path / "two.jsonl").read_text().splitlines()) == 2
    assert (program_log.level, program_log.propagate, program_log.handlers) == (logging.NOTSET, True, [])


FORGED = "\x1b]0;owned\x07\x1b[31m\nERROR client b is lost"


@pytest.mark.usefixtures("terminal_log")
def test_words_of_others_move_no_cursor_and_forge_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_terminal(logging.WARNING)
    with log_to_file(tmp_path / "log.jsonl"):
        log.warning("client a (%s) is refused", FORGED)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.rstrip("\n").isprintable()
    assert shown.startswith("WARNING client a (")
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(line)["message"].isprintable()


@pytest.mark.usefixtures("terminal_log")
def test_a_message_of_megabytes_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_terminal(logging.WARNING)
    with log_to_file(tmp_path / "log.jsonl"):
        log.error("client a: %s", "A" * 1_000_000)
    assert len(capsys.readouterr().err) < 10_000
    assert (tmp_path / "log.jsonl").stat().st_size < 10_000


@pytest.mark.usefixtures("terminal_log")
def test_the_stack_trace_of_a_defect_stays_readable_whatever_the_error_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_terminal(logging.WARNING)
    with log_to_file(tmp_path / "log.jsonl"):
        try:
            raise ValueError("\x1b[31m" + "A" * 1_000_000)
        except ValueError:
            log.exception("a defect")
    shown = capsys.readouterr().err
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    for trace in (shown, json.loads(line)["trace"]):
        assert "Traceback (most recent call last):\n  File" in trace
        assert "ValueError:" in trace
        assert "\x1b" not in trace
        assert len(trace) < 20_000

"""The trace is what a viewer can read: valid JSON, slices within slices, on one clock."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fenchel.common.errors import CheckpointError, SettingsError
from fenchel.report.render.trace import Event, events, write_trace
from fenchel.report.run import Run
from tests.messages import raises

SLACK = 1.0  # microseconds: times since 1970 are known no better


def slices(found: list[Event]) -> dict[tuple[int, int], list[Event]]:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def names(found: list[Event], kind: str) -> dict[Any, str]:
    return {
        (event["pid"], event.get("tid", 0)): event["args"]["name"]
        for event in found
        if event["ph"] == "M" and event["name"] == kind
    }


def assert_nested(track: list[Event]) -> None:
    """Each slice lies within the last one that is still open, or after it."""
    open_until: list[float] = []
    for event in sorted(track, key=lambda event: (event["ts"], -event["dur"])):
        while open_until and event["ts"] >= open_until[-1] - SLACK:
            open_until.pop()
        ended = event["ts"] + event["dur"]
        assert not open_until or ended <= open_until[-1] + SLACK, event
        open_until.append(ended)


def answered(run: Run) -> int:
    """Calls whose answer was here when their row was written."""
    return int(np.isfinite(run.calls["arrived_s"]).sum())


@pytest.fixture(params=["finished", "encrypted"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


def test_slices_are_nested_and_none_is_negative(run: Run) -> None:
    found = list(events(run))
    for event in found:
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    tracks = slices(found)
    assert len(tracks) == 2 + 3 * len(set(run.calls["client"]))
    for track in tracks.values():
        assert_nested(track)


def test_a_client_works_between_the_servers_sending_and_its_receiving(run: Run) -> None:
    found = list(events(run))
    processes = names(found, "process_name")
    threads = names(found, "thread_name")
    tracks = slices(found)
    handled = 0
    for (process, _), client in processes.items():
        if client == "server":
            continue
        (down,) = (place for place, name in threads.items() if name == f"to {client}")
        (back,) = (place for place, name in threads.items() if name == f"from {client}")
        sent = {event["args"]["sequence"]: event for event in tracks[down]}
        received = {event["args"]["sequence"]: event for event in tracks[back] if "args" in event}
        for event in tracks[process, 1]:
            if "args" not in event:
                continue
            sequence = event["args"]["sequence"]
            assert sent[sequence]["ts"] <= event["ts"] + SLACK
            ended = event["ts"] + event["dur"]
            assert ended <= received[sequence]["ts"] + SLACK
            handled += 1
    assert handled == answered(run)


def test_an_instruction_waits_first_for_its_client_and_then_for_its_turn(
    altered: Callable[..., Run], finished: Run
) -> None:
    away = np.where(np.arange(len(finished.calls)) == 1, 0.25, 0.0)
    found = list(events(altered(calls={"away_s": away.tolist()})))
    begins = {event["id"]: event for event in found if event["ph"] == "b"}
    waits = {
        name: [
            (begins[event["id"]]["ts"], event["ts"]) for event in found if event["ph"] == "e" and event["name"] == name
        ]
        for name in ("client away", "queued on the server")
    }
    ((gone, back),) = waits["client away"]
    assert back - gone == pytest.approx(0.25e6, abs=SLACK)
    assert any(begin == back for begin, _ in waits["queued on the server"])
    queue = finished.calls["queue_s"].dropna()
    lasted = [ended - begun for begun, ended in waits["queued on the server"]]
    np.testing.assert_allclose(lasted, 1e6 * queue, atol=2 * SLACK)


def test_rows_of_an_earlier_version_in_a_run_that_went_on_are_drawn(altered: Callable[..., Run], finished: Run) -> None:
    whole = list(events(finished))
    assert len(list(events(altered(calls={"away_s": [None] * len(finished.calls)})))) == len(whole)


def test_every_arrow_leads_forward_from_one_slice_into_another(run: Run) -> None:
    found = list(events(run))
    tracks = slices(found)
    ends: dict[int, list[Event]] = defaultdict(list)
    for event in found:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
    assert len(ends) == 2 * answered(run)
    for start, stop in ends.values():
        assert (start["ph"], stop["ph"], stop["bp"]) == ("s", "f", "e")
        assert start["ts"] <= stop["ts"] + 2 * SLACK
        for event in (start, stop):
            around = tracks[event["pid"], event["tid"]]
            assert any(each["ts"] - SLACK <= event["ts"] <= each["ts"] + each["dur"] + SLACK for each in around)


def test_the_servers_track_has_the_rounds_the_evaluations_and_the_checkpoints(run: Run) -> None:
    server = [event for event in events(run) if event["ph"] == "X" and event["pid"] == 1]
    rounds = [event for event in server if event["name"].startswith("round ")]
    np.testing.assert_allclose([event["dur"] / 1e6 for event in rounds], run.metrics["seconds"], atol=1e-6)
    evaluations = [event["dur"] / 1e6 for event in server if event["name"] == "evaluation"]
    np.testing.assert_allclose(evaluations, run.metrics["evaluation_s"], atol=1e-6)
    checkpoints = [event for event in server if event["name"] == "checkpoint"]
    assert len(checkpoints) == np.isfinite(run.metrics["checkpoint_s"]).sum() > 0
    for event in server:
        about = event.get("args", {})
        if about.get("round") == 1 and about.get("kind") == "ask":
            assert rounds[0]["ts"] - SLACK <= event["ts"]
            assert event["ts"] + event["dur"] <= rounds[0]["ts"] + rounds[0]["dur"] + SLACK


def test_the_file_is_json_and_compressed_where_its_name_says_so(finished: Run, tmp_path: Path) -> None:
    number = write_trace(finished, tmp_path / "trace.json")
    plain = (tmp_path / "trace.json").read_text()
    assert len(json.loads(plain)["traceEvents"]) == number == len(list(events(finished)))
    write_trace(finished, tmp_path / "trace.json.gz")
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode() == plain


def test_a_run_that_was_killed_has_a_trace_of_what_is_there(killed: Run) -> None:
    rounds = [event["name"] for event in events(killed) if event.get("name", "").startswith("round ")]
    assert rounds == ["round 1", "round 2"]


def test_a_client_that_did_not_answer_is_drawn_as_far_as_it_is_known(
    altered: Callable[..., Run], finished: Run
) -> None:
    silent = finished.calls["client"] == "client-001"
    gone = {name: np.where(silent, np.nan, finished.calls[name]) for name in ("total_s", "arrived_s")}
    run = altered(calls={name: values.tolist() for name, values in gone.items()})
    found = list(events(run))
    (process,) = (place for place, name in names(found, "process_name").items() if name == "client-001")
    assert not slices(found)[process[0], 1]
    assert len(slices(found)) == 2 + 3 * 2 + 1  # what was sent to it is there


def test_runs_without_what_is_needed_say_what_is_missing(
    altered: Callable[..., Run], finished: Run, tmp_path: Path
) -> None:
    for column in ("arrived_s", "away_s"):
        old = altered(column, calls=finished.calls_table.drop_columns([column]))
        with raises(CheckpointError):
            write_trace(old, tmp_path / "trace.json")
    empty = altered("empty", calls=finished.calls_table.slice(0, 0))
    with raises(CheckpointError):
        write_trace(empty, tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "trace.json"):
        with raises(SettingsError):
            write_trace(finished, place)


def test_nothing_that_is_not_known_reaches_the_file(altered: Callable[..., Run], finished: Run) -> None:
    unknown = pa.array([None] * finished.calls_table.num_rows, pa.float64()).to_pylist()
    run = altered(calls={"clock_offset_s": [float("nan") for _ in unknown]})
    for event in events(run):
        json.dumps(event, allow_nan=False)

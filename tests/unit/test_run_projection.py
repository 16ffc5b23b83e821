"""Projections of runs whose tables are written by hand, so that every time can be worked out on paper."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from fenchel.common.errors import CheckpointError, SettingsError
from fenchel.common.settings.link import Link
from fenchel.common.storage.call_columns import COLUMNS
from fenchel.common.storage.time_parts import TIME_PARTS
from fenchel.deploy.cli.main import application
from fenchel.report.projection.projection import WINDOW_BYTES, Projection, measured, project
from fenchel.report.run import Run
from fenchel.report.timeline import Timeline
from tests.messages import raises

EPOCH = 1.7e9
WAY = 0.002  # seconds that a message takes in the run as it was measured
OWN = 0.01  # of the server between two exchanges


def exactly(expected: Any) -> Any:
    """Allow for times of day that are known to a quarter of a microsecond."""
    return pytest.approx(expected, abs=1e-5)


@dataclass
class Work:
    """What one client does of an exchange."""

    compute: float
    down: int = 0
    up: int = 0
    client: str = "a"
    away: float = 0.0  # seconds until the client is there


@dataclass
class Tables:
    """Writes the tables of a run with one phase after the other."""

    folder: Path
    now: float = 0.0

    def __post_init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.round = 1
        self.began = self.away = 0.0
        self.resumptions = 0

    def ask(self, *works: Work, phase: str = "train", kind: str = "ask", missing: Sequence[str] = ()) -> None:
        """Add an exchange, after the server's own time."""
        self.now += OWN
        there = [work for work in works if work.client not in missing]
        longest = max((work.away + 2 * WAY + work.compute for work in there), default=0.0)
        # A deadline of a second where somebody does not answer.
        ended = longest if not missing else 1.0
        for work in works:
            self._call(work, phase, kind, "unanswered" if work.client in missing else "counted", ended)
        self.now += ended

    def tell(self, *works: Work, phase: str = "step") -> None:
        """Add a promise, which nobody waits for, and whose answers are known."""
        self.now += OWN
        for work in works:
            self._call(work, phase, "tell", "confirmed", math.nan)

    def _call(self, work: Work, phase: str, kind: str, outcome: str, ended: float) -> None:
        answered = outcome != "unanswered"
        total = work.away + 2 * WAY + work.compute if answered else math.nan
        self.away += work.away if total == ended else 0.0
        self.calls.append(
            dict.fromkeys(COLUMNS, 0.0)
            | {
                "round": self.round,
                "phase": phase,
                "kind": kind,
                "client": work.client,
                "sequence": (self.resumptions << 32) + len(self.calls),
                "outcome": outcome,
                "queued_unix": EPOCH + self.now,
                "wire_down": work.down,
                "wire_up": work.up if answered else 0,
                "socket_up": float(work.up),
                "away_s": work.away,
                "total_s": total,
                "network_s": 2 * WAY if answered else math.nan,
                "compute_s": work.compute if answered else 0.0,
                "waiting_s": ended - total if answered else math.nan,
                "arrived_s": work.away + WAY if answered else math.nan,
                "replied_s": work.away + WAY + work.compute if answered else math.nan,
            }
        )

    def end_round(self) -> None:
        """Close a round, and begin the next one."""
        self.metrics.append(
            dict.fromkeys((f"{part}_s" for part in (*TIME_PARTS, "evaluation")), 0.0)
            | {
                "round": self.round,
                "seconds": self.now - self.began,
                "away_s": self.away,
                "started_unix": EPOCH + self.began,
            }
        )
        self.began, self.away = self.now, 0.0
        self.round += 1

    def run(self, *, without: Sequence[str] = ()) -> Run:
        """Write what there is, and return it as a run."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "settings.yaml").write_text("name: by-hand\n")
        (self.folder / "log.jsonl").touch()
        done = {"run": "by-hand", "completed": True, "rounds": len(self.metrics)}
        (self.folder / "summary.json").write_text(json.dumps(done))
        for name, rows in (("calls", self.calls), ("metrics", self.metrics)):
            table = pa.Table.from_pylist(rows)
            kept = [column for column in table.column_names if column not in without]
            pq.write_table(table.select(kept), self.folder / f"{name}.parquet")
        return Run(self.folder)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "run")


def projected(tables: Tables, server_bandwidth: float | None = None, **figures: Any) -> Projection:
    return project(Timeline.of(tables.run()), Link(**figures), server_bandwidth)


def test_a_round_is_the_servers_work_both_ways_and_the_computation(tables: Tables) -> None:
    for _ in range(3):
        tables.ask(Work(0.3, down=50_000, up=20_000))
        tables.end_round()
    found = projected(tables, rtt=0.8, download=1e5, upload=1e4)
    assert found.seconds == exactly([OWN + 0.5 + 2.0 + 0.8 + 0.3] * 3)
    assert found.parts.serialisation == exactly(3 * 2.5)
    assert found.parts.propagation == exactly(3 * 0.8)
    assert found.parts.compute == exactly(0.9)
    assert found.parts.server == exactly(3 * OWN)
    assert measured(Timeline.of(tables.run())).total == exactly(3 * (OWN + 2 * WAY + 0.3))


def test_another_client_may_be_the_last_one_on_a_thin_link(tables: Tables) -> None:
    tables.ask(Work(1.0, client="slow"), Work(0.1, up=100_000, client="large"))
    tables.end_round()
    assert projected(tables, upload=1e6).total == exactly(OWN + 1.0)
    thin = projected(tables, upload=5e4)
    assert thin.total == exactly(OWN + 0.1 + 2.0)
    assert thin.parts.compute == exactly(0.1)


@pytest.mark.parametrize("phase", ["again", "train"])
def test_exchanges_of_a_round_each_cost_a_round_trip(phase: str, tables: Tables) -> None:
    tables.ask(Work(0.1), Work(0.1, client="b"))
    tables.ask(Work(0.2), Work(0.1, client="b"), phase=phase)
    tables.end_round()
    assert projected(tables, rtt=0.5).total == exactly(2 * OWN + 0.3 + 2 * 0.5)


def test_a_promise_is_not_waited_for_but_is_done_before_the_next_question(tables: Tables) -> None:
    tables.tell(Work(0.4, down=50_000))
    tables.ask(Work(0.1, down=50_000))
    tables.end_round()
    # Both are on their way at once, and the question waits until the client is done with the promise.
    assert projected(tables, rtt=0.5).total == exactly(OWN + 0.5 + 0.4 + 0.1)
    # On a thin link, the promise is in the way of the question.
    assert projected(tables, download=1e5).total == exactly(OWN + 1.0 + 0.1)


def test_clients_have_links_of_their_own_and_share_the_servers(tables: Tables) -> None:
    tables.ask(*(Work(0.1, down=50_000, client=name) for name in "abcd"))
    tables.end_round()
    assert projected(tables, download=1e5).total == exactly(OWN + 0.5 + 0.1)
    assert projected(tables, 1e5, download=1e5).total == exactly(OWN + 2.0 + 0.1)


def test_who_is_done_first_is_first_on_the_servers_link(tables: Tables) -> None:
    slow, quick = Work(2.0, up=50_000, client="a"), Work(0.1, up=50_000, client="b")
    tables.ask(slow, quick)
    tables.end_round()
    assert projected(tables, 1e5).total == exactly(OWN + 2.0 + 0.5)


def test_more_than_a_window_takes_another_round_trip(tables: Tables) -> None:
    tables.ask(Work(0.1, down=2 * WINDOW_BYTES + 1, up=WINDOW_BYTES))
    tables.end_round()
    assert projected(tables, rtt=0.5).total == exactly(OWN + 0.1 + 0.5 + 2 * 0.5)
    # A link that takes longer than a round trip for a window is never held up by it.
    rate = WINDOW_BYTES / 4
    slow = projected(tables, rtt=0.5, download=rate, upload=rate)
    assert slow.total == exactly(OWN + 0.1 + 0.5 + 12)


def test_who_did_not_answer_is_waited_for_as_long_as_then(tables: Tables) -> None:
    tables.ask(Work(0.1), Work(0.1, client="gone"), missing=["gone"])
    tables.end_round()
    course = Timeline.of(tables.run())
    assert course.overdue == 1
    assert project(course, Link(rtt=0.5)).total == exactly(OWN + 1.0)
    assert project(course, Link(rtt=5.0)).total == exactly(OWN + 5.1)


def test_the_same_jitter_is_drawn_every_time_and_never_shortens_anything(tables: Tables) -> None:
    for _ in range(200):
        tables.ask(Work(0.01))
        tables.end_round()
    first, second = (projected(tables, rtt=0.1, jitter=0.02) for _ in range(2))
    assert first.seconds.tolist() == second.seconds.tolist()
    extra = first.seconds - projected(tables, rtt=0.1).seconds
    assert (extra >= -1e-5).all()
    assert 0.015 < extra.mean() < 0.025  # the mean of 200 sums of two draws, each with a mean of 10 ms


@given(
    works=st.lists(
        st.lists(
            st.tuples(st.floats(0, 1), st.integers(0, 10**7), st.integers(0, 10**7), st.booleans()),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    ),
    rtts=st.tuples(st.floats(0, 2), st.floats(0, 2)),
    rate=st.floats(1e5, 1e9),
)
def test_parts_add_up_and_a_longer_way_never_takes_less(
    tmp_path: Path, works: list[list[tuple[float, int, int, bool]]], rtts: tuple[float, float], rate: float
) -> None:
    tables = Tables(tmp_path / "any")
    for request in works:
        each = [Work(*work[:3], client=name) for name, work in zip("abcd", request, strict=False)]
        if request[0][3]:
            tables.tell(*each)
        else:
            tables.ask(*each)
        tables.end_round()
    near, far = (projected(tables, rtt=rtt, upload=rate, download=rate) for rtt in sorted(rtts))
    for found in (near, far):
        assert found.parts.total == pytest.approx(found.seconds.sum(), abs=1e-6)
        assert all(getattr(found.parts, part) >= -1e-9 for part in TIME_PARTS)
    assert far.total >= near.total - 1e-6
    faster = projected(tables, rtt=min(rtts), upload=2 * rate, download=2 * rate)
    assert faster.total <= near.total + 1e-6
    assert np.isfinite(near.seconds).all()


def test_a_run_without_a_round_in_one_process_or_of_an_earlier_version_is_refused(tables: Tables) -> None:
    with raises(CheckpointError, file="calls.parquet"):
        Timeline.of(tables.run())
    tables.ask(Work(0.1))
    tables.end_round()
    with raises(CheckpointError):
        Timeline.of(tables.run(without=("arrived_s", "replied_s")))
    for call in tables.calls:
        call["socket_up"] = math.nan
    run = tables.run()
    Timeline.of(run)  # elsewhere than on Linux nobody counts, either; there is a log
    (run.path / "log.jsonl").unlink()
    with raises(CheckpointError):
        Timeline.of(Run(run.path))


@pytest.fixture
def command() -> Callable[..., Result]:
    app = application()

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, ["project", *words], catch_exceptions=False)

    return invoke


def test_what_a_resumed_run_waited_for_its_clients_is_not_carried_over(
    tables: Tables, command: Callable[..., Result]
) -> None:
    tables.ask(Work(0.3), Work(0.2, client="b"))
    tables.end_round()
    tables.now += 100.0  # nobody conducts the run
    tables.began, tables.resumptions = tables.now, 1
    # Who is back last is not who computes longest; the promise waits, too.
    tables.tell(Work(0.1, client="b", away=9.0))
    tables.ask(Work(0.3, away=5.0), Work(0.2, client="b", away=9.0 - OWN))
    tables.end_round()
    tables.ask(Work(0.3), Work(0.2, client="b"))
    tables.end_round()
    course = Timeline.of(tables.run())
    assert measured(course).seconds == exactly([OWN + 2 * WAY + 0.3, 2 * OWN + 2 * WAY + 0.2, OWN + 2 * WAY + 0.3])
    assert measured(course).parts.away == exactly(0.0)
    found = project(course, Link(rtt=0.5))
    assert found.seconds == exactly([OWN + 0.5 + 0.3, 2 * OWN + 0.5 + 0.3, OWN + 0.5 + 0.3])
    assert "8.99 s passed until clients were back" in command(str(tables.folder), "--rtt", "0.5").stdout


def test_a_client_that_was_away_is_away_over_any_link(tables: Tables) -> None:
    tables.ask(Work(0.3, away=4.0), Work(0.2, client="b"))
    tables.end_round()
    course = Timeline.of(tables.run())
    assert measured(course).parts.away == exactly(4.0)
    found = project(course, Link(rtt=0.5))
    assert found.seconds == exactly([OWN + 4.0 + 0.5 + 0.3])
    assert found.parts.away == exactly(4.0)
    assert found.parts.propagation == exactly(0.5)


def test_the_command_combines_links(tables: Tables, command: Callable[..., Result], tmp_path: Path) -> None:
    tables.ask(Work(0.1, down=1000, up=1000))
    tables.end_round()
    picture = tmp_path / "drawn" / "links.png"
    times, rates = ("--rtt", "0.8", "--rtt", "20ms"), ("--bandwidth", "20Mbit", "--bandwidth", "1Mbit")
    options = (*times, *rates, "--download", "1Gbit", "--picture", str(picture), "--json")
    projected = json.loads(command(str(tables.run().path), *options).stdout)["projected"]
    links = [(each["link"]["rtt"], each["link"]["upload"], each["link"]["download"]) for each in projected]
    assert links == [(rtt, up, 1.25e8) for rtt in (0.8, 0.02) for up in (2.5e6, 1.25e5)]
    expected = [OWN + 0.1 + rtt + 1000 / up + 1000 / down for rtt, up, down in links]
    assert [each["total"] for each in projected] == exactly(expected)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_terminal_of_80_columns_shows_the_whole_table(
    tables: Tables, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tables.ask(Work(0.1, down=100_000, up=100_000))
    tables.end_round()
    text = command(str(tables.run().path), "--bandwidth", "1kbit", "--rtt", "20").stdout
    assert re.search(r" serialisation \d+% *$", text, re.MULTILINE)


def test_the_command_says_what_the_figures_leave_out(tables: Tables, command: Callable[..., Result]) -> None:
    tables.ask(Work(0.1, down=5 * WINDOW_BYTES), Work(0.1, client="gone"), missing=["gone"])
    tables.end_round()
    run = tables.run()
    (run.path / "summary.json").unlink()
    said = command(str(run.path), "--rtt", "0.8").stdout
    assert "as measured" in said
    for words in ("unfinished: the figures are for the 1 round", "1 instruction had no answer", "several windows"):
        assert words in said


def test_the_command_refuses_what_is_no_bandwidth(tables: Tables, command: Callable[..., Result]) -> None:
    tables.ask(Work(0.1))
    tables.end_round()
    run = str(tables.run().path)
    for option in ("--bandwidth", "--server-bandwidth"):
        with raises(SettingsError, source="fenchel project") as refused:
            command(run, option, "20Mb, an upload")
        assert refused.value.key == option

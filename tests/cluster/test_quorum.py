"""Clients that are away or frozen: a run waits for its quorum, can be stopped meanwhile, and leaves the late behind."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.tables import read
from fenchel.server import checkpoint as checkpoints
from tests.cluster import ledger_runs
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, digest, wait_until
from tests.cluster.ledger_runs import LEDGER, undisturbed

pytestmark = pytest.mark.cluster

ROUNDS = 40
INTERRUPTED = 130
AWAY = "client-001"


def settings(**participation: Any) -> dict[str, Any]:
    """A ledger whose cohorts of two must be complete, with a deadline that is much shorter than an absence.

    Whether the duals add up is seen when all of them are shown, for which there is time.
    """
    terms = {
        "sampler": {"kind": "fixed", "size": 2},
        "deadline": 1.0,
        "min_replies": 2,
        "phases": {"show": {"deadline": 60.0}},
    }
    return ledger_runs.settings(ROUNDS, nap=0.02) | {"participation": terms | participation}


def waits(federation: Federation, times: int = 1) -> bool:
    return federation.says("server").count("The run waits for") >= times


def rounds_done(federation: Federation) -> list[int]:
    """Return the rounds that the server has shown, of all of its processes."""
    return [int(t) for t in re.findall(r"^round (\d+) ", federation.says("server"), re.MULTILINE)]


def stopped(federation: Federation, how: signal.Signals) -> float:
    """Stop the server, which must end as an interrupted run that can be resumed; return how long that took."""
    assert federation.server is not None
    began = time.monotonic()
    federation.server.send_signal(how)
    assert federation.server.wait(60) == INTERRUPTED, federation.says("server")
    return time.monotonic() - began


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(300)
def test_a_run_that_waits_has_saved_all_and_goes_on_with_the_same_bits_also_after_a_stop_and_a_kill(
    federate: MakeFederation, tmp_path: Path
) -> None:
    """Regular checkpoints are none: they would come after the end of the run."""
    federation = federate(settings() | {"checkpoint": {"every": 10 * ROUNDS}}, allow=LEDGER)
    federation.start()
    federation.wait_for_round(5)
    federation.kill(AWAY)
    wait_until(lambda: waits(federation, 2), "the run to say twice that it waits")
    done = check_saved(federation)
    said = " ".join(federation.says("server").split())
    assert f"2 are required (participation.min_replies). The run waits for 1 more, of {AWAY} (away)" in said
    assert "Ctrl-C or SIGTERM stops the run, and --resume continues it" in said
    assert stopped(federation, signal.SIGTERM) < 10
    assert '"reason": "interrupted"' in (federation.run_folder / "summary.json").read_text()
    for name in federation.names:
        assert name == AWAY or federation.clients[name].wait(30) == 0

    federation.start()
    federation.wait_for_round(done + 5)
    gone = time.monotonic()
    federation.kill(AWAY)
    told = federation.says("server").count("The run waits for")
    wait_until(lambda: waits(federation, told + 1), "the run to wait again")
    assert check_saved(federation) > done
    federation.kill("server")
    federation.restart("server")
    wait_until(lambda: waits(federation, told + 2), "the resumed run to wait")
    absent = time.monotonic() - gone
    federation.restart(AWAY)
    run = federation.finish()
    assert rounds_done(federation) == list(range(1, ROUNDS + 1)), "no round is done twice"
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)
    metrics = read(run / "metrics.parquet").to_pandas()
    assert metrics["away_s"].max() >= 1.0, "a round waited for a client, and says so"
    assert (metrics["network_s"] + metrics["queueing_s"]).max() < 0.5 * absent


def check_saved(federation: Federation) -> int:
    """Check that all rounds that were done are saved, and that the server says so; return the last."""
    last = rounds_done(federation)[-1]
    assert checkpoints.load(RunFolder(federation.run_folder).checkpoint).round == last
    assert f"Everything up to round {last} is saved" in " ".join(federation.says("server").split())
    return last


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(300)
def test_a_federation_of_one_command_with_a_frozen_client_can_be_stopped_and_resumed(
    federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings())
    federation.server = federation.process(
        "server", "up", str(tmp_path / "settings.yaml"), "--runs", str(tmp_path / "runs")
    )
    federation.wait_for_round(5)
    frozen = next(
        process
        for process in psutil.Process(federation.server.pid).children(recursive=True)
        if Path(f"/proc/{process.pid}/fd/1").resolve().name == f"{AWAY}.log"
    )
    frozen.suspend()
    wait_until(lambda: waits(federation), "the run to wait")
    assert f"of {AWAY} (connected)" in " ".join(federation.says("server").split())
    assert stopped(federation, signal.SIGINT) < 30  # a process that is frozen cannot end by itself
    assert not psutil.pid_exists(frozen.pid)
    federation.server = federation.process("server", "up", "--resume", str(federation.run_folder))
    run = federation.finish()
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(300)
def test_a_frozen_client_costs_as_many_deadlines_as_the_run_is_patient(federate: MakeFederation) -> None:
    without = settings(sampler={"kind": "all"}, min_replies=1, patience=2)
    without["algorithm"] |= {"check": False}  # the duals of the frozen client are not among those that are shown
    federation = federate(without, allow=LEDGER)
    federation.start()
    federation.wait_for_round(5)
    federation.clients[AWAY].send_signal(signal.SIGSTOP)
    assert federation.server is not None
    assert federation.server.wait(120) == 0, federation.says("server")
    said = " ".join(federation.says("server").split())
    assert said.count(f"client {AWAY} has missed 2 deadlines in a row") == 1
    assert not waits(federation)
    rows = read(federation.run_folder / "metrics.parquet").to_pylist()
    assert len(rows) == ROUNDS
    # A round with a deadline takes a second and more; there is another chance when twenty have passed.
    assert 2 <= sum(row["seconds"] >= 1.0 for row in rows) <= 4
    assert [row["counted"] < row["asked"] for row in rows[-10:]] == [True] * 10, "it is still asked"


def is_saved_as_away(federation: Federation) -> bool:
    """Whether the last checkpoint knows that a client has not answered for long."""
    kept = checkpoints.load(RunFolder(federation.run_folder).checkpoint).members[AWAY]
    missed: int = kept.get("absence", {}).get("missed", 0)
    return missed >= 2


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(300)
def test_a_client_that_is_away_for_good_leaves_its_place_in_cohorts_to_others(federate: MakeFederation) -> None:
    """Also after a kill of the server, which must know how long it has been away.

    On a busy machine others can be late for this deadline, too.
    """
    said = f"client {AWAY} did not answer its requests in 2 rounds in a row"
    without = settings(min_replies=1, patience=2, deadline=0.5)
    without["algorithm"] |= {"check": False, "nap": 0.06}  # it must be killed before it is over
    federation = federate(without, allow=LEDGER)
    federation.start()
    federation.wait_for_round(5)
    federation.kill(AWAY)
    wait_until(lambda: said in " ".join(federation.says("server").split()), "it to be left out")
    wait_until(lambda: is_saved_as_away(federation), "a checkpoint that knows of it")
    federation.wait_for_round(15)
    federation.kill("server")
    federation.restart("server")
    assert federation.server is not None
    assert federation.server.wait(120) == 0, federation.says("server")
    assert " ".join(federation.says("server").split()).count(said) == 1
    rows = read(federation.run_folder / "calls.parquet").to_pylist()
    asked = [{row["client"] for row in rows if row["round"] == t and row["kind"] == "ask"} for t in range(20, 41)]
    assert {len(cohort) for cohort in asked} == {2}
    assert sum(AWAY in cohort for cohort in asked) <= 6, "and 14 of 21 without this"


@pytest.mark.slow
def test_a_thawed_client_takes_part_again_though_the_rounds_are_faster_than_its_backlog(
    federate: MakeFederation,
) -> None:
    federation = federate(
        {
            "rounds": 1_000_000,  # it is not waited for
            "clients": 3,
            "data": {"name": "digits", "samples": 300},
            "objective": {"kind": "softmax"},
            "algorithm": {"name": "scaffold", "local_steps": 1},
            "participation": {"deadline": 1.0, "min_replies": 2},
            "evaluation": {"every": 100},
        }
    )
    federation.start()
    federation.wait_for_round(5)
    federation.clients[AWAY].send_signal(signal.SIGSTOP)
    wait_until(lambda: "deadlines in a row" in federation.says("server"), "the run not to wait for the frozen client")
    without = rounds_done(federation)[-1]
    wait_until(lambda: rounds_done(federation)[-1] > without + 500, "rounds without the client")
    federation.clients[AWAY].send_signal(signal.SIGCONT)
    wait_until(lambda: federation.says("server").rindex("3/3") > federation.says("server").rindex("2/3"), "its replies")
    assert "unsolicited" not in federation.says("server")

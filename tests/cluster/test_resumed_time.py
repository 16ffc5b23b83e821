"""A run whose server is killed explains its time all the same: real processes, held against the clock of the test."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from fenchel.common.settings.link import Link
from fenchel.report.projection.projection import measured, project
from fenchel.report.run import Run
from fenchel.report.timeline import Timeline
from fenchel.report.wall_time import wall_of
from tests.cluster.federation import Federation

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MakeFederation = Callable[..., Federation]
PARTS = ["compute_s", "encryption_s", "coding_s", "network_s", "queueing_s", "away_s", "waiting_s", "server_s"]
AWAY = 4.0  # seconds for which nobody conducts the run, at least

SETTINGS = {
    "name": "resumed",
    "seed": 5,
    "rounds": 400,
    "clients": 2,
    "data": {"name": "digits", "scale": "unit-interval"},
    "objective": {"kind": "softmax", "l2": 1e-4},
    "algorithm": {"name": "fedavg", "local_epochs": 3, "batch_size": 16, "step_size": 0.1},
}


@pytest.mark.slow  # make test-all
def test_what_a_resumption_costs_is_no_cost_of_a_round(federate: MakeFederation) -> None:
    federation = federate(SETTINGS)
    federation.start()
    federation.wait_for_round(50)
    federation.kill("server")
    time.sleep(AWAY)
    federation.restart("server")
    run = Run(federation.finish())
    assert run.completed
    back = run.steady.seconds
    assert back > 0
    # The first round afterwards lasted as long as that, and all of it is absence.
    raw, metrics = run.metrics, run.steady.metrics.to_pandas()
    (place,) = np.flatnonzero(run.steady.rounds)
    assert raw["away_s"][place] >= back
    np.testing.assert_allclose(raw["seconds"] - run.steady.rounds, metrics["seconds"])
    np.testing.assert_allclose(metrics[PARTS].sum(axis=1) + metrics["unaccounted_s"], metrics["seconds"], atol=1e-6)
    assert abs(metrics["unaccounted_s"].sum()) < 0.05 * metrics["seconds"].sum()
    wall = wall_of(run)
    assert len(run.begun) == 2
    # From the first server's beginning until the last one writes how the run ended.
    over = (run.path / "summary.json").stat().st_mtime
    assert wall.total == pytest.approx(over - run.begun[0], abs=0.5 * AWAY)
    assert wall.paused > AWAY
    assert wall.setup > back
    # Rounds are as short as they were before, and so they are over any link.
    course = Timeline.of(run)
    assert measured(course).seconds.sum() == pytest.approx(raw["seconds"].sum() - back)
    far = project(course, Link(rtt=0.1))
    assert far.seconds[place] < 0.1 + 10 * metrics["seconds"].median() + 0.2 + 0.5 * back
    assert far.seconds.sum() == pytest.approx(400 * 0.1 + metrics["seconds"].sum(), rel=0.1)

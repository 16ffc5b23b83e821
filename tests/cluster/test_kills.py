"""Whatever is killed, and whenever: the final model is the one of a run without a kill, bit for bit."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.cluster.federation import Federation, digest, wait_until
from tests.cluster.ledger_runs import LEDGER, settings, undisturbed

pytestmark = pytest.mark.cluster

KILLS = 20


@pytest.mark.timeout(600)
def test_twenty_kills_at_random_moments_do_not_change_a_bit_of_the_model(tmp_path: Path) -> None:
    rounds = 300
    chance = random.Random(20)
    federation = Federation(tmp_path, settings(rounds, nap=0.01), allow=LEDGER)
    killed = []
    try:
        federation.start()
        wait_until(lambda: "round 1 " in federation.says("server"), "the first round")
        for _ in range(KILLS):
            assert federation.server is not None
            assert federation.server.poll() is None, "the run ended before all kills: give it more rounds"
            who = chance.choice(["server", *federation.names])
            federation.kill(who)
            killed.append(who)
            time.sleep(chance.uniform(0.0, 0.2))
            federation.restart(who)
            time.sleep(chance.uniform(0.0, 1.0))
        run = federation.finish(patience=300)
    finally:
        federation.end()
    assert len(killed) == KILLS
    assert {"server"} < set(killed), "both sides must have been killed"
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", rounds)


@pytest.mark.timeout(300)
def test_a_run_that_was_brought_up_in_one_command_resumes_after_a_kill(tmp_path: Path) -> None:
    rounds = 60
    federation = Federation(tmp_path, settings(rounds, nap=0.01))
    runs = ["--runs", str(tmp_path / "runs")]
    try:
        federation.server = federation.process("server", "up", str(tmp_path / "settings.yaml"), *runs)
        wait_until(lambda: "round 20 " in federation.says("server"), "round 20")
        federation.kill("server")
        federation.server = federation.process("server", "up", "--resume", str(federation.run_folder))
        run = federation.finish()
    finally:
        federation.end()
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", rounds)

"""Every algorithm between real processes: whatever is killed, and whenever, the model has the bits of a quiet run.

Ten kills for each algorithm. Besides random moments there are the two at which a half-done file or an answer that
was written and not sent could do harm: in the middle of a checkpoint or a journal entry (its new file is
there, and not yet renamed), and just after a journal entry (the reply has not left). For these a process ends
itself, by :mod:`tests.faults.dying.sitecustomize`, and each of them comes for every algorithm, but for
journals where clients have no state. A kill is one that the kernel tells of: who had ended by itself does not
count.
"""

from __future__ import annotations

import asyncio
import atexit
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from fenchel.algorithms.registry import client_half
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.certificates.keys import make_keys
from fenchel.deploy.launch.fork_server import ForkServer
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.keys.shared import Secrets
from tests.cases import FIRST, sections_of
from tests.cluster.federation import MODULES, Federation, digest, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 10
KEY_BITS = 2048  # as in its case
DYING = Path(__file__).parent / "dying"

Moment: TypeAlias = Literal["any", "checkpoint", "journal", "reply"]
MOMENTS: tuple[Moment, ...] = ("any", "checkpoint", "any", "reply", "any", "journal")
WITHOUT_JOURNAL: tuple[Moment, ...] = ("any", "checkpoint")

ROUNDS = {"hyfdca": 120, "hyfdca, encrypted": 40}
"""Rounds of a run, so many that most of its kills find it going on; others have 120."""

STAGED = {"kind": "practice", "stage_steps": 38}
"""The schedule of the algorithms in stages, for so many rounds."""

KILLED = (
    *FIRST.values(),
    *("fedavg, sparse", "fedpd, skipping", "acc-feddcd, two cohorts", "codasca, as published", "hyfdca, encrypted"),
)


def settings_of(case: str) -> dict[str, Any]:
    settings = sections_of(case)
    settings |= {"name": "kills", "rounds": ROUNDS.get(case, 120), "evaluation": {"server": False, "clients": False}}
    if "schedule" in settings["algorithm"]:
        settings["algorithm"] |= {"schedule": STAGED}
    # Longer than any restart on a busy machine: a late answer would change the run, as it should.
    settings["participation"] = {**settings.get("participation", {}), "deadline": 600.0}
    return settings


class Sharing(Federation):
    """Clients that are given the secrets which they share."""

    def client_words(self, name: str) -> list[str]:
        given = ["--secrets", str(self.folder / "keys/clients.secret"), "--allow-plaintext"]
        return [*super().client_words(name), *given]


@cache
def dying_fork_server() -> ForkServer:
    """Return what forks processes that obey orders, for all tests of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{Path.cwd()}:{DYING}")
        started = ForkServer(MODULES).__enter__()
    atexit.register(started.__exit__)
    return started


def federation_of(folder: Path, case: str) -> Federation:
    settings = settings_of(case)
    orders = folder / "orders"
    orders.mkdir(parents=True)
    given: dict[str, Any] = {"environment": {"FENCHEL_TEST_ORDERS": str(orders)}, "forks": dying_fork_server}
    if not case.startswith("hyfdca"):  # which aligns samples by a key that clients share
        return Federation(folder, settings, **given)
    make_keys(folder / "keys", KEY_BITS)
    return Sharing(folder, settings, **given)


def quiet(folder: Path, case: str) -> str:
    """Return the digest of the model of a run in one process, without a kill."""
    run = RunFolder.create(folder, "quiet")
    settings = validate(settings_of(case))
    shared = folder.parent / "keys/clients.secret"
    asyncio.run(run_in_process(settings, run, secrets=Secrets.load(shared) if shared.exists() else None))
    return digest(run.model)


@contextmanager
def started(federation: Federation) -> Iterator[None]:
    try:
        federation.start()
        wait_until(lambda: "round 1 " in federation.says("server"), "the first round")
        yield
    finally:
        federation.end()


def strike(federation: Federation, moment: Moment, chance: random.Random) -> str | None:
    """Kill somebody at such a moment; return who it was, or ``None`` if the run was over before."""
    if moment == "any":
        who = chance.choice(["server", *federation.names])
        time.sleep(chance.uniform(0.0, 0.2))
        if is_nearly_over(federation):
            return None  # a client that is killed now would come back to nobody
    else:
        who = "server" if moment == "checkpoint" else chance.choice(federation.names)
        goes_on(federation)
        if not obeyed(federation, who, moment):
            return None
    # A process that has ended by itself is not killed any more.
    return who if federation.kill(who) == -signal.SIGKILL else None


def goes_on(federation: Federation) -> None:
    """Wait until another round is done, so that nobody is on the way back; or until the run is over.

    A resumed server writes its last checkpoint again, and clients that lost it come back after up to five seconds:
    without this, a moment would be that of coming back, or come late.
    """
    before = rounds_told(federation)
    wait_until(lambda: rounds_told(federation) > before or is_nearly_over(federation), "another round")


def come_back(federation: Federation, who: str) -> None:
    """Restart a killed process; wait for a client to work again, as a run that does not need it could end before."""
    before = federation.says(who).count("working for run")
    federation.restart(who)
    if who != "server":
        wait_until(lambda: federation.says(who).count("working for run") > before, f"{who} at work again")


def rounds_told(federation: Federation) -> int:
    """Return how many rounds the server's processes have told of, one line each."""
    return federation.says("server").count("\nround ")


def is_nearly_over(federation: Federation) -> bool:
    """Return whether the server has ended, or so few rounds are left that a killed process may restart after them."""
    assert federation.server is not None
    done = federation.says("server").rpartition("\nround ")[2].partition(" ")[0]
    return federation.server.poll() is not None or (done.isdigit() and int(done) > 0.8 * federation.settings["rounds"])


def obeyed(federation: Federation, who: str, moment: Moment) -> bool:
    """Order a process to end itself when it next writes such a file; return whether it took the order.

    If not, the run is over.
    """
    order = federation.folder / "orders" / f"{who}.{moment}"
    order.touch()
    wait_until(lambda: not order.exists() or is_nearly_over(federation), f"{who} in the middle of its {moment}")
    try:
        order.unlink()
    except FileNotFoundError:
        return True  # whoever takes an order away carries it out
    return False


@pytest.mark.parametrize("case", KILLED)
def test_kills_change_no_bit_of_the_model(case: str, tmp_path: Path) -> None:
    chance = random.Random(f"kills of {case}")
    half = client_half(settings_of(case)["algorithm"]["name"])
    moments = WITHOUT_JOURNAL if half.stateless() else MOMENTS
    killed: list[Moment] = []
    models = set()
    for attempt in range(KILLS):  # a run may be over before all kills: then there is another
        federation = federation_of(tmp_path / f"run-{attempt}", case)
        with started(federation):
            while len(killed) < KILLS:
                moment = moments[len(killed) % len(moments)]
                who = strike(federation, moment, chance)
                if who is None:
                    break  # the moment is the first of the next run
                killed.append(moment)
                time.sleep(chance.uniform(0.0, 0.2))
                come_back(federation, who)
                time.sleep(chance.uniform(0.0, 0.4))
            run = federation.finish(patience=600)
        models.add(digest(run / "model.npz"))
        if len(killed) == KILLS:
            break
    print(f"{case}: {dict(Counter(killed))}")
    assert len(killed) == KILLS
    assert set(killed) == set(moments)
    assert models == {quiet(tmp_path / "run-0" / "reference", case)}

"""A policy's largest epsilon holds over all runs, whatever a server calls them and however often a client starts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.connection import Connection
from fenchel.client.joining import Participant
from fenchel.client.local_data import OwnFile
from fenchel.client.privacy.ledger import COUNT, LEDGER, POLICY_LEDGER, Account, Ledger
from fenchel.client.privacy.ledger_file import LedgerFile
from fenchel.client.privacy.policy import Policy
from fenchel.client.session import Session
from fenchel.client.trust_limits import TrustLimits
from fenchel.common.accounting.accountant import Release, epsilon
from fenchel.common.errors import AnotherRunError, BudgetSpentError, CheckpointError, SettingsError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.frames import Body, frames, parse
from fenchel.common.wire.outline import Received, outline
from fenchel.common.wire.payload import encode
from fenchel.deploy.certificates.making import make_all
from fenchel.proto import fenchel_pb2 as pb
from tests.hostile.test_untrusted_server import Impostor
from tests.messages import raises
from tests.slow import rest_slow

DELTA = 1e-4
POLICY = Policy(maximum_epsilon=1.0, delta=DELTA)
FEATURES = 5
SAMPLES = 200
SETTINGS: dict[str, Any] = {
    "rounds": 10,
    "clients": 1,
    "data": {"name": "own", "classes": ["ill", "well"], "scale": "unit-rows"},
    "objective": {"kind": "logistic"},
    "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 20, "batches": "epoch", "step_size": 0.1},
    "differential_privacy": {"mechanism": "batch", "clip": 0.5, "noise_multiplier": 2.0, "delta": DELTA},
}
RELEASE = Release(2.0, 2 * 20 / SAMPLES)


def hospital(path: Path, *, seed: int = 0, samples: int = SAMPLES) -> Path:
    chance = np.random.default_rng(seed)
    rows = [
        ",".join([*(f"{value:.6f}" for value in row), "ill" if row[0] > 0 else "well"])
        for row in chance.standard_normal((samples, FEATURES))
    ]
    header = ",".join([*(f"x{column}" for column in range(FEATURES)), "label"])
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The client's own file."""
    return hospital(tmp_path / "north.csv")


def connection(data: Path, state: Path | None, policy: Policy | None = POLICY, name: str = "north") -> Connection:
    """Return a client process's connection, without a server."""
    who = Participant(name=name, server="localhost:1", local_data=OwnFile(data), state_folder=state, policy=policy)
    return Connection(who, ThreadPoolExecutor(1))


def joined(client: Connection, run: str, **changes: Any) -> Session:
    """Return the client's session in a run that a server shows it."""
    assignment = pb.Assignment(index=0, clients=1)
    reply = pb.JoinReply(run=run, settings=json.dumps(SETTINGS | changes), assignment=assignment)
    return client._ready(reply).session


def question(sequence: int, value: float = 0.0) -> tuple[pb.Instruction, Received]:
    encoded = encode({"model": np.full(FEATURES, value)})
    head = pb.Instruction(sequence=sequence, phase="train", round=sequence, kind=pb.ASK, payload=encoded.descriptor)
    return head, Received(outline(encoded.descriptor, 1 << 20), encoded.joined())


def asked(session: Session, sequence: int = 1, value: float = 0.0) -> pb.Reply:
    """Ask for an upload of a round."""
    head, received = question(sequence, value)
    return session.handle(head, received).head


def given_away(uploads: int) -> float:
    return epsilon({RELEASE: uploads}, DELTA)


def affordable() -> int:
    return next(count for count in range(1, 100) if given_away(count + 1) > 1.0)


def uploads_until_spent(client: Callable[[], Connection], runs: int) -> int:
    """Show a client so many runs, of one upload each; return how many it has answered."""
    answered = 0
    for number in range(runs):
        try:
            session = joined(client(), f"run-{number}")
        except BudgetSpentError as error:
            assert error.epsilon > error.allowed == 1.0
        else:
            answered += not asked(session).failure
    return answered


@pytest.mark.slow
@pytest.mark.parametrize("runs", [60, 20], ids=["one client process", "a new start for each run"])
def test_renamed_runs_cost_no_more_than_one_may(runs: int, data: Path, tmp_path: Path) -> None:
    """So it is with restart: on-failure, too, and a server that ends the client again and again."""
    assert 1 < affordable() < 20, "the attack would go beyond"
    one = connection(data, tmp_path / "state")
    client = (lambda: one) if runs == 60 else (lambda: connection(data, tmp_path / "state"))
    assert uploads_until_spent(client, runs) == affordable()


def test_a_ledger_that_the_policy_names_counts_other_state_folders(data: Path, tmp_path: Path) -> None:
    named = POLICY.model_copy(update={"ledger": tmp_path / "ledgers" / "north"})
    states = iter(range(100))
    answered = uploads_until_spent(lambda: connection(data, tmp_path / f"state-{next(states)}", named), 20)
    assert answered == affordable()
    nowhere = uploads_until_spent(lambda: connection(data, None, named), 2)
    assert nowhere == 0


def test_a_largest_epsilon_needs_a_place_where_runs_are_counted(data: Path) -> None:
    with raises(SettingsError, client="north"):
        joined(connection(data, None), "run")
    assert not asked(joined(connection(data, None, Policy(delta=DELTA)), "run")).failure


@pytest.mark.parametrize(
    "changes",
    rest_slow(
        [
            {"data": SETTINGS["data"] | {"scale": "none", "bias": 1.0}},
            {"data": SETTINGS["data"] | {"holdout": 0.1}},
            {"data": SETTINGS["data"] | {"classes": ["ill", "other", "well"]}, "objective": {"kind": "softmax"}},
            {"seed": 9},
            {"objective": {"kind": "logistic", "dtype": "float32"}},
        ],
        2,
    ),
    ids=["scaling", "holdout", "classes", "seed", "dtype"],
)
def test_the_servers_settings_do_not_begin_a_new_count(changes: dict[str, Any], data: Path, tmp_path: Path) -> None:
    assert uploads_until_spent(lambda: connection(data, tmp_path / "state"), 20) == affordable()
    with raises(BudgetSpentError):
        joined(connection(data, tmp_path / "state"), "elsewhere", **changes)


def test_neither_one_sample_more_nor_another_name_begins_a_new_count(data: Path, tmp_path: Path) -> None:
    named = POLICY.model_copy(update={"ledger": tmp_path / "ledger"})
    assert uploads_until_spent(lambda: connection(data, tmp_path / "state", named), 20) == affordable()
    more = hospital(tmp_path / "more.csv", samples=SAMPLES + 1)
    with raises(BudgetSpentError):
        joined(connection(more, tmp_path / "other", named), "run-a")
    with raises(BudgetSpentError):
        joined(connection(data, tmp_path / "other", named, name="south"), "run-b")
    others = hospital(tmp_path / "others.csv", seed=1)
    assert not asked(joined(connection(others, tmp_path / "other", named, name="south"), "run-c")).failure


def test_runs_without_a_policy_count_once_there_is_one(data: Path, tmp_path: Path) -> None:
    """Their ledgers, also those of older versions, are taken in on the first start."""
    session = joined(connection(data, tmp_path / "state", None), "before")
    before = affordable() - 1
    for t in range(1, before + 1):
        assert not asked(session, t).failure
    assert uploads_until_spent(lambda: connection(data, tmp_path / "state"), 3) == 1


class Died(BaseException):
    """The process was killed."""


@pytest.mark.parametrize("kills", rest_slow([1, 2]), ids=["after the run's ledger", "after the policy's ledger"])
def test_a_kill_between_charge_and_sending_charges_at_least_what_left(
    kills: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    session = joined(connection(data, state), "run")
    assert not asked(session, 1).failure
    append, left = LedgerFile.append, Counter(kill=kills)

    def dying(file: LedgerFile, entry: dict[str, Any]) -> None:
        append(file, entry)
        left["kill"] -= 1
        if not left["kill"]:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "append", dying)
        with pytest.raises(Died):
            asked(session, 2, 1.0)
    restarted = joined(connection(data, state), "run")
    assert counted(state, "run", data) == 2, "nothing left, and it is charged"
    assert not asked(restarted, 2, 1.0).failure, "the same payload"
    assert counted(state, "run", data) == 2, "once"
    assert uploads_until_spent(lambda: connection(data, state), 20) == affordable() - 2


def counted(state: Path, run: str, data: Path) -> int:
    """Return how many uploads of a run the policy's ledger has."""
    path = (state / POLICY_LEDGER).resolve()
    identity = OwnFile(data).identity(joined_settings(), "north")
    opened = Account("north", run, identity, path, None).opened(None, DELTA)
    assert opened is not None
    return opened.uploads_of_this_run


def joined_settings() -> Any:
    return TrustLimits().settings(json.dumps(SETTINGS), "own.csv")


@pytest.mark.parametrize("policy", [None, POLICY], ids=["no policy", "policy"])
@pytest.mark.parametrize("whole", [False, True], ids=["the ledger", "the whole folder"])
def test_an_old_copy_of_a_runs_ledger_is_found(whole: bool, policy: Policy | None, data: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    folder = state / "run" / "north"
    session = joined(connection(data, state, policy), "run")
    assert not asked(session, 1).failure
    shutil.copytree(folder, tmp_path / "copy")
    assert not asked(session, 2).failure
    if whole:
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copy", folder)
    else:
        shutil.copy(tmp_path / "copy" / LEDGER, folder / LEDGER)
    assert Ledger(folder / LEDGER, "north").uploads == 1, "by itself it looks whole"
    if whole and policy is None:
        return  # nothing else knows
    with raises(CheckpointError, file="privacy.ledger"):
        joined(connection(data, state, policy), "run")


def test_a_count_that_a_crash_has_spoilt_says_nothing(data: Path, tmp_path: Path) -> None:
    session = joined(connection(data, tmp_path, None), "run")
    assert not asked(session, 1).failure
    for spoilt in (b"", bytes(21), b"\xff"):
        (tmp_path / "run" / "north" / COUNT).write_bytes(spoilt)
        assert joined(connection(data, tmp_path, None), "run").client == "north"


@pytest.mark.parametrize("change", ["old copy", "lost"])
def test_an_old_copy_of_a_policys_ledger_is_found(change: str, data: Path, tmp_path: Path) -> None:
    named = POLICY.model_copy(update={"ledger": tmp_path / "ledger"})
    for run in ("a", "b"):
        assert not asked(joined(connection(data, tmp_path / run, named), run)).failure
        if run == "a":
            copy = shutil.copy(tmp_path / "ledger", tmp_path / "copy")
    session = joined(connection(data, tmp_path / "b", named), "b")
    assert not asked(session, 2).failure
    (tmp_path / "ledger").unlink()
    if change == "old copy":
        shutil.copy(copy, tmp_path / "ledger")
    with raises(
        CheckpointError, file="ledger"
    ):  # without the last two charges, of which only the last is known elsewhere
        joined(connection(data, tmp_path / "b", named), "b")
    with raises(CheckpointError, file="ledger"):
        asked(session, 3)


@pytest.mark.parametrize("outside", rest_slow([False, True]), ids=["in the folder", "outside of it"])
def test_only_a_ledger_outside_a_state_folder_knows_that_all_of_the_folder_is_an_old_copy(
    outside: bool, data: Path, tmp_path: Path
) -> None:
    """From inside, an old copy of everything cannot be told from the truth (docs/privacy.md says so)."""
    policy = POLICY.model_copy(update={"ledger": tmp_path / "ledgers" / "north"}) if outside else POLICY
    state = tmp_path / "state"

    def restarted() -> Connection:
        return connection(data, state, policy)

    assert not asked(joined(restarted(), "begun"), 1).failure
    shutil.copytree(state, tmp_path / "backup")
    assert not asked(joined(restarted(), "begun"), 2).failure
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    if outside:
        with raises(CheckpointError, file="privacy.ledger"):
            joined(restarted(), "begun")
    else:
        assert joined(restarted(), "begun").client == "north", "what left since is forgotten"
    known = 2 if outside else 1
    assert uploads_until_spent(restarted, 20) == affordable() - known


@pytest.mark.slow
def test_several_processes_share_a_ledger(data: Path, tmp_path: Path) -> None:
    """Charges of all of them count, and no line is written into another one."""
    program = """
import sys
from pathlib import Path
from fenchel.client.privacy.ledger import Account, Ledger
from fenchel.common.accounting.accountant import Release
name, path, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
ledger = Ledger(None, name, policy=Account(name, "run", "sha256:same", path, None).opened(None, 1e-4))
for number in range(first, first + 50):
    ledger.charge(number.to_bytes(32, "big"), number, Release(2.0, 0.2))
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, f"client-{number}", str(tmp_path / "ledger"), str(100 * number)],
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        )
        for number in range(3)
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    opened = Account("north", "run", "sha256:same", tmp_path / "ledger", None).opened(None, DELTA)
    assert opened is not None
    assert opened.uploads == 150


@dataclass
class Renaming(Impostor):
    """A server that asks one upload of each run, and then has another run."""

    replies: list[pb.Reply] = field(default_factory=list)
    asks: bool = True
    sequence: int = 1

    async def _join(self, request: pb.JoinRequest, context: object) -> pb.JoinReply:
        self.run = f"run-{len(self.joined)}"
        return await super()._join(request, context)

    async def _work(self, incoming: Any, context: Any) -> None:
        await context.read()
        await context.write(next(frames(pb.Welcome())))
        if not self.asks:
            if len(self.joined) == 3:
                await context.write(next(frames(pb.Farewell(completed=True))))
            return
        head = pb.Instruction(sequence=self.sequence, phase="train", round=1, kind=pb.ASK)
        for frame in frames(head, Body(encode({"model": np.zeros(FEATURES)}))):
            await context.write(frame)
        reply = parse(await context.read()).head
        assert isinstance(reply, pb.Reply)
        self.replies.append(reply)

    async def attack(self, data: Path, certificate: Path, state: Path, **limits: Any) -> pb.Farewell:
        """Have a client of a policy take part."""
        async with self.listening() as port:
            who = Participant(
                name="north",
                server=f"localhost:{port}",
                credentials=Credentials.load(certificate),
                local_data=OwnFile(data),
                state_folder=state,
                trust_limits=TrustLimits(**limits),
                retry_for=20.0,
                policy=POLICY,
            )
            with ThreadPoolExecutor(1) as executor:
                async with asyncio.timeout(60):
                    return await Connection(who, executor).take_part()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_all(tmp_path / "certs", ["localhost"], ["north"])
    return tmp_path / "certs"


@pytest.fixture
def server(certificates: Path) -> Renaming:
    return Renaming(Credentials.load(certificates / "server"), json.dumps(SETTINGS))


@pytest.mark.parametrize("sequence", [1, 0])
async def test_a_client_that_has_worked_for_a_run_follows_the_server_into_no_other(
    server: Renaming, data: Path, certificates: Path, tmp_path: Path, sequence: int
) -> None:
    server.sequence = sequence
    with raises(AnotherRunError) as caught:
        await server.attack(data, certificates / "north", tmp_path / "state")
    assert (caught.value.joined, caught.value.shown) == ("run-0", "run-1")
    assert caught.value.exit_code == 5
    assert [bool(reply.failure) for reply in server.replies] == [False]


async def test_with_any_run_it_follows_until_its_policy_is_spent(
    server: Renaming, data: Path, certificates: Path, tmp_path: Path
) -> None:
    with raises(BudgetSpentError):
        await server.attack(data, certificates / "north", tmp_path / "state", any_run=True)
    assert [bool(reply.failure) for reply in server.replies] == [False] * affordable()


async def test_a_run_that_has_asked_nothing_binds_nobody(
    server: Renaming, data: Path, certificates: Path, tmp_path: Path
) -> None:
    """A server that dies before its first checkpoint begins another run."""
    server.asks = False
    assert (await server.attack(data, certificates / "north", tmp_path / "state")).completed
    assert len(server.joined) == 3

"""What is wrong is said in one paragraph, on the side of whoever can mend it, and the run goes on."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import fenchel
from fenchel.common.errors import CredentialError, DataError, JoinRefusedError, RunStoppedError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.channel import options
from fenchel.deploy.certificates.making import make_all
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub
from fenchel.server import checkpoint
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, Process, wait_until
from tests.cluster.ledger_runs import LEDGER

pytestmark = pytest.mark.cluster

SETTINGS: dict[str, Any] = {
    "rounds": 5,
    "clients": 2,
    "data": {"name": "digits"},
    "objective": {"kind": "softmax"},
    "algorithm": {"name": "fedavg"},
}
OWN = SETTINGS | {
    "rounds": 200,
    "data": {"name": "own", "scale": "unit-rows", "bias": 1.0},
    "objective": {"kind": "logistic", "l2": 0.001},
    "algorithm": {"name": "fedavg", "step_size": 1.0, "local_epochs": 5},
}


def one_paragraph(text: str) -> str:
    """Return the error a process ended with; it must not be a stack trace."""
    assert "Traceback" not in text, text
    assert "error: " in text, text
    return text[text.rindex("\nerror: ") if "\nerror: " in text else text.index("error: ") :]


def own_data(folder: Path, features: int, seed: int) -> Path:
    chance = np.random.default_rng(seed)
    values = chance.standard_normal((60, features))
    labels = np.where(values.sum(axis=1) > 0, "ill", "well")
    path = folder / f"hospital-{seed}.csv"
    header = ",".join([*(f"x{column}" for column in range(features)), "outcome"])
    rows = [",".join([*(f"{value:.6f}" for value in row), label]) for row, label in zip(values, labels, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def refused(federation: Federation, name: str, instance: bytes, protocol: int = PROTOCOL) -> grpc.aio.AioRpcError:
    """Have somebody with the certificate of client-001 join under a name; return what the server says."""

    async def join() -> grpc.aio.AioRpcError:
        credentials = Credentials.load(federation.folder / "certs/client-001").for_channel()
        async with grpc.aio.secure_channel(f"localhost:{federation.port}", credentials, options(20)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await CoordinatorStub(channel).Join(
                    pb.JoinRequest(protocol=protocol, client=name, instance=instance, own_data=True), timeout=5
                )
            return caught.value

    return asyncio.run(join())


@pytest.mark.slow
def test_who_does_not_fit_is_told_so_and_the_run_goes_on_with_those_who_do(federate: MakeFederation) -> None:
    federation: Federation = federate(OWN)
    folder = federation.folder
    federation.start_server()
    first, second = federation.names

    def start(name: str, data: Path, certificate: Path | None = None) -> Process:
        words = ["client", f"localhost:{federation.port}", "--certs", str(certificate or folder / "certs" / name)]
        return federation.process(name, *words, "--data", str(data), "--label", "outcome")

    good = own_data(folder, 6, seed=0)
    make_all(folder / "strangers", ["localhost"], [first])
    stranger = start("stranger", good, folder / "strangers" / first)
    assert stranger.wait(60) == CredentialError.exit_code
    assert "authority" in one_paragraph(federation.says("stranger"))

    federation.clients[first] = start(first, good)
    wait_until(lambda: "waiting for the others" in federation.says(first), "the first client")
    spoofed = refused(federation, first, b"x" * 16)
    assert spoofed.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "certificate is for 'client-001'" in (spoofed.details() or "")
    outdated = refused(federation, second, b"x" * 16, protocol=99)
    assert outdated.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "protocol" in (outdated.details() or "")

    broken = folder / "broken.csv"
    broken.write_text("x0,x1,outcome\n1.0,2.0,ill\n1.0,oops,well\n")
    unread = start("unread", broken, folder / "certs" / second)
    assert unread.wait(60) == DataError.exit_code
    assert "broken.csv" in one_paragraph(federation.says("unread"))
    said = " ".join(federation.says("server").split())
    assert f"client {second} has ended by an error (DataError; see its log)" in said
    assert "broken.csv" not in said
    federation.clients[second] = start(second, own_data(folder, 5, seed=1))
    wait_until(lambda: any(each.poll() is not None for each in federation.clients.values()), "one to be refused")
    (name,) = [name for name, process in federation.clients.items() if process.poll() is not None]
    assert federation.clients[name].returncode == JoinRefusedError.exit_code
    assert "give all files the same columns" in one_paragraph(federation.says(name))
    federation.clients[name] = start(name, own_data(folder, 6 if name == second else 5, seed=2))
    federation.wait_for_round(1)
    twin = refused(federation, second, b"y" * 16)
    assert twin.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "in use" in (twin.details() or "")
    run = fenchel.Run(federation.finish())
    assert run.figures["train_accuracy"] > 0.9


def test_a_fleet_that_stays_incomplete_ends_with_the_names_of_those_who_came(federate: MakeFederation) -> None:
    federation = federate(SETTINGS | {"network": {"join_timeout": 8.0}})  # a client tries at least every 5 s
    federation.start_client("client-001")  # first, as a busy machine may take longer than that to start it
    wait_until(lambda: "trying again" in federation.says("client-001"), "the client to look for its server")
    federation.start_server()
    assert federation.server is not None
    assert federation.server.wait(60) == RunStoppedError.exit_code
    said = one_paragraph(federation.says("server"))
    assert "1 of 2" in said
    assert "client-001" in said


def without_journal(**participation: Any) -> dict[str, Any]:
    return SETTINGS | {
        "rounds": 60,  # it must be stopped before it is over
        "clients": 3,
        # What was lost with a journal leaves the duals unbalanced, which the ledger would notice.
        "algorithm": {"name": LEDGER, "nap": 0.02, "check": not participation},
        "evaluation": {"server": False, "clients": False},
        "participation": {"deadline": 60.0} | participation,
    }


@pytest.mark.slow
def test_a_client_without_its_journal_is_left_out_where_the_settings_say_so(federate: MakeFederation) -> None:
    federation = federate(without_journal(on_lost_state="continue") | {"rounds": 30}, allow=LEDGER)
    federation.start()
    federation.wait_for_round(5)
    federation.kill("client-001")
    shutil.rmtree(federation.folder / "state" / "client-001")
    federation.start_client("client-001")
    assert federation.clients.pop("client-001").wait(60) == JoinRefusedError.exit_code
    assert "journal" in one_paragraph(federation.says("client-001"))
    federation.finish()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_client_without_its_journal_stops_the_run_which_goes_on_once_it_is_put_back(federate: MakeFederation) -> None:
    """Also where a server that was resumed has missed it again, and has written its checkpoint anew."""
    federation = federate(without_journal(), allow=LEDGER)
    federation.start()
    federation.wait_for_round(5)
    # Of a run that goes on from its very beginning, a client needs no journal.
    wait_until(lambda: checkpoint.load(RunFolder(federation.run_folder).checkpoint).round > 0, "a checkpoint")
    assert federation.kill("client-001") == -signal.SIGKILL
    state = federation.folder / "state" / "client-001"
    state.rename(elsewhere := federation.folder / "elsewhere")
    federation.start_client("client-001")
    assert federation.server is not None
    assert federation.server.wait(90) == RunStoppedError.exit_code
    assert federation.clients["client-001"].wait(30) == JoinRefusedError.exit_code
    assert "journal" in one_paragraph(federation.says("client-001"))
    for name in federation.names:
        federation.kill(name)  # one that was away when the server stopped would look for it for minutes
    shutil.rmtree(state, ignore_errors=True)
    federation.start()
    assert federation.server.wait(90) == RunStoppedError.exit_code
    assert "Restore its --state folder and continue with --resume RUN" in " ".join(federation.says("server").split())
    for name in federation.names:
        federation.kill(name)
    shutil.rmtree(state, ignore_errors=True)
    elsewhere.rename(state)
    federation.start()
    federation.finish()


def test_a_server_that_lingers_after_an_error_answers_clients_with_the_reason(federate: MakeFederation) -> None:
    federation = federate(SETTINGS | {"data": {"name": "digits", "samples": 10**9}})
    federation.start_server("--linger", "600")
    assert federation.server is not None
    federation.start_client("client-000")
    assert federation.clients["client-000"].wait(60) == JoinRefusedError.exit_code
    reason = one_paragraph(federation.says("client-000"))
    assert "the server has ended: " in reason
    assert "data.samples" in reason
    federation.server.send_signal(signal.SIGTERM)
    assert federation.server.wait(60) == DataError.exit_code
    assert "data.samples" in one_paragraph(federation.says("server"))

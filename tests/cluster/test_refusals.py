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
from fenchel.common.tls.credentials import Credentials
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.channel import options
from fenchel.deploy.certificates.making import make_all
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import wait_until

pytestmark = pytest.mark.cluster

SETTINGS: dict[str, Any] = {
    "rounds": 5,
    "clients": 2,
    "data": {"name": "digits"},
    "objective": {"kind": "softmax"},
    "algorithm": {"name": "fedavg"},
}


def one_paragraph(text: str) -> str:
    """Return the error a process ended with; it must not be a stack trace."""
    assert "Traceback" not in text, text
    assert "error: " in text, text
    return text[text.rindex("\nerror: ") if "\nerror: " in text else text.index("error: ") :]


def test_a_certificate_of_another_authority_does_not_get_in(federate: MakeFederation) -> None:
    federation = federate(SETTINGS)
    federation.start_server()
    strangers = federation.folder / "strangers"
    make_all(strangers, ["localhost"], ["client-000"])
    stranger = federation.process(
        "stranger", "client", f"localhost:{federation.port}", "--certs", str(strangers / "client-000")
    )
    assert stranger.wait(60) == CredentialError.exit_code
    assert "authority" in one_paragraph(federation.says("stranger"))
    for name in federation.names:
        federation.start_client(name)
    federation.finish()


def test_an_identity_in_use_is_refused_and_the_run_goes_on(federate: MakeFederation) -> None:
    federation = federate(SETTINGS | {"clients": 2, "rounds": 2})
    federation.start_server()
    federation.start_client("client-000")
    wait_until(lambda: "waiting for the others" in federation.says("client-000"), "the first client")
    certificates = federation.folder / "certs"

    async def join(name: str, instance: bytes, protocol: int = 1) -> grpc.aio.AioRpcError:
        credentials = Credentials.load(certificates / "client-001").for_channel()
        async with grpc.aio.secure_channel(f"localhost:{federation.port}", credentials, options(20)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await CoordinatorStub(channel).Join(
                    pb.JoinRequest(protocol=protocol, client=name, instance=instance, software="a test"), timeout=5
                )
            return caught.value

    spoofed = asyncio.run(join("client-000", b"x" * 16))
    assert spoofed.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "certificate is for 'client-001'" in (spoofed.details() or "")
    outdated = asyncio.run(join("client-001", b"x" * 16, protocol=99))
    assert outdated.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "protocol" in (outdated.details() or "")
    federation.start_client("client-001")
    federation.finish()


def test_a_second_process_with_the_same_certificate_is_refused_while_the_first_works(federate: MakeFederation) -> None:
    slow = SETTINGS | {"rounds": 400, "algorithm": {"name": "fedavg", "local_epochs": 5}}
    federation = federate(slow)
    federation.start()
    wait_until(lambda: "round 1 " in federation.says("server"), "the first round")

    async def join_twice() -> grpc.aio.AioRpcError:
        credentials = Credentials.load(federation.folder / "certs/client-001").for_channel()
        async with grpc.aio.secure_channel(f"localhost:{federation.port}", credentials, options(20)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await CoordinatorStub(channel).Join(
                    pb.JoinRequest(protocol=PROTOCOL, client="client-001", instance=b"y" * 16, software="a twin"),
                    timeout=5,
                )
            return caught.value

    refused = asyncio.run(join_twice())
    assert refused.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "in use" in (refused.details() or "")
    assert federation.server is not None
    federation.server.send_signal(signal.SIGTERM)
    assert federation.server.wait(30) == 130


def own_data(folder: Path, features: int, seed: int) -> Path:
    chance = np.random.default_rng(seed)
    values = chance.standard_normal((60, features))
    labels = np.where(values.sum(axis=1) > 0, "ill", "well")
    path = folder / f"hospital-{seed}.csv"
    header = ",".join([*(f"x{column}" for column in range(features)), "outcome"])
    rows = [",".join([*(f"{value:.6f}" for value in row), label]) for row, label in zip(values, labels, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


OWN = SETTINGS | {
    "data": {"name": "own", "scale": "unit-rows", "bias": 1.0},
    "objective": {"kind": "logistic", "l2": 0.001},
    "algorithm": {"name": "fedavg", "step_size": 1.0, "local_epochs": 5},
}


def test_hospitals_bring_their_own_files_and_one_with_other_columns_is_told_so(federate: MakeFederation) -> None:
    federation = federate(OWN | {"rounds": 20})
    federation.start_server()

    def start(name: str, data: Path) -> None:
        federation.clients[name] = federation.process(
            name,
            "client",
            f"localhost:{federation.port}",
            *("--certs", str(federation.folder / "certs" / name)),
            *("--data", str(data), "--label", "outcome"),
        )

    start("client-000", own_data(federation.folder, 6, seed=0))
    wait_until(lambda: "waiting for the others" in federation.says("client-000"), "the first client")
    start("client-001", own_data(federation.folder, 5, seed=1))
    wait_until(
        lambda: any(process.poll() is not None for process in federation.clients.values()), "a client to be refused"
    )
    (name,) = [name for name, process in federation.clients.items() if process.poll() is not None]
    assert federation.clients[name].returncode == JoinRefusedError.exit_code
    assert "all clients need the same" in one_paragraph(federation.says(name))
    mended = own_data(federation.folder, 6 if name == "client-001" else 5, seed=2)
    start(name, mended)
    run = fenchel.Run(federation.finish())
    assert run.figures["train_accuracy"] > 0.9


def test_a_data_file_that_does_not_parse_ends_that_client_with_the_line(federate: MakeFederation) -> None:
    federation = federate(OWN | {"clients": 1})
    federation.start_server()
    broken = federation.folder / "broken.csv"
    broken.write_text("x0,x1,outcome\n1.0,2.0,ill\n1.0,oops,well\n")
    client = federation.process(
        "broken",
        "client",
        f"localhost:{federation.port}",
        *("--certs", str(federation.folder / "certs/client-000")),
        *("--data", str(broken), "--label", "outcome"),
    )
    assert client.wait(60) == DataError.exit_code
    assert "broken.csv" in one_paragraph(federation.says("broken"))


def test_a_fleet_that_stays_incomplete_ends_with_the_names_of_those_who_came(federate: MakeFederation) -> None:
    federation = federate(SETTINGS | {"network": {"join_timeout": 6.0}})
    federation.start_server()
    federation.start_client("client-001")
    assert federation.server is not None
    assert federation.server.wait(60) == RunStoppedError.exit_code
    said = one_paragraph(federation.says("server"))
    assert "1 of 2" in said
    assert "client-001" in said


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_client_without_its_journal_stops_the_run_or_is_left_out(policy: str, federate: MakeFederation) -> None:
    ledger = "tests.cluster.ledger:Ledger"
    settings = SETTINGS | {
        "rounds": 60,
        "clients": 3,
        "algorithm": {"name": "fedavg"},
        "evaluation": {"server": False, "clients": False},
        "participation": {"on_lost_state": policy, "deadline": 60.0},
    }
    settings["algorithm"] = {"name": ledger, "nap": 0.02}
    if policy == "continue":
        # The promise that was lost with the journal leaves the duals unbalanced, which the ledger would notice.
        settings["algorithm"]["check"] = False
    federation = federate(settings, allow=ledger)
    federation.start()
    wait_until(lambda: "round 5 " in federation.says("server"), "round 5")
    federation.kill("client-001")
    shutil.rmtree(federation.folder / "state" / "client-001")
    federation.start_client("client-001")
    assert federation.server is not None
    code = federation.server.wait(90)
    if policy == "stop":
        assert code == 7, federation.says("server")
        assert "journal" in one_paragraph(federation.says("server"))
    else:
        assert code == 0, federation.says("server")
    assert federation.clients["client-001"].wait(30) == JoinRefusedError.exit_code
    assert "journal" in one_paragraph(federation.says("client-001"))


@pytest.mark.timeout(180)
def test_a_journal_that_is_put_back_lets_the_run_go_on(federate: MakeFederation) -> None:
    """Also where a server that was resumed has missed it, and has written its checkpoint anew."""
    ledger = "tests.cluster.ledger:Ledger"
    settings = SETTINGS | {
        "rounds": 200,  # it must be stopped before it is over
        "clients": 3,
        "algorithm": {"name": ledger, "nap": 0.02},
        "evaluation": {"server": False, "clients": False},
        "participation": {"deadline": 60.0},
    }
    federation = federate(settings, allow=ledger)
    federation.start()
    federation.wait_until_saved(5)
    assert federation.server is not None
    federation.server.send_signal(signal.SIGTERM)
    federation.server.wait(60)
    for name in federation.names:
        federation.kill(name)  # one that was away when the server stopped would look for it for minutes
    state = federation.folder / "state" / "client-001"
    state.rename(elsewhere := federation.folder / "elsewhere")
    federation.start()
    assert federation.server.wait(90) == 7
    said = " ".join(federation.says("server").split())
    assert "Put its --state folder back and go on with --resume RUN" in said
    for name in federation.names:
        federation.kill(name)
    shutil.rmtree(state, ignore_errors=True)
    elsewhere.rename(state)
    federation.start()
    federation.finish()

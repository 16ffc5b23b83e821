"""What a run says of its time and its bytes, held against the clock and against the operating system."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.client_process import host
from fenchel.client.joining import Participant
from fenchel.client.local_data import LocalData
from fenchel.client.trust_limits import TrustLimits
from fenchel.common.settings.run import validate
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.metering.socket_bytes import SocketBytes, Sockets
from fenchel.report.run import Run
from fenchel.server.coordinator import Coordinator
from fenchel.server.transport.service import serve
from tests.observing import Calling

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a connection")

PARTS = ["compute_s", "encryption_s", "coding_s", "network_s", "queueing_s", "away_s", "waiting_s", "server_s"]
DIGITS: dict[str, Any] = {"name": "digits", "scale": "unit-interval"}
ENCRYPTED: dict[str, Any] = {
    "data": {
        "name": "breast_cancer",
        "scale": "unit-rows",
        "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
    },
    "objective": {"kind": "hinge", "l2": 0.01},
    "algorithm": {"name": "hyfdca", "encryption": {"key_bits": 2048}},
}
ORDINARY: Mapping[str, dict[str, Any]] = {
    "fedavg": {
        "data": DIGITS,
        "objective": {"kind": "softmax"},
        "algorithm": {"name": "fedavg", "local_epochs": 3, "batch_size": 16, "step_size": 0.5},
    },
    "feddcd": {"data": DIGITS, "objective": {"kind": "softmax", "l2": 0.01}, "algorithm": {"name": "feddcd"}},
    "hyfdca": ENCRYPTED,
}


def echo(floats: int) -> dict[str, Any]:
    return {
        "data": DIGITS,
        "objective": {
            "kind": "own",
            "name": "benchmarks.echo:Vacuum",
            "dtype": "float32",
            "parameters": {"dimension": floats},
        },
        "algorithm": {"name": "benchmarks.echo:Echo"},
        "evaluation": {"server": False, "clients": False},
    }


def up(tmp_path: Path, settings: Mapping[str, Any], rounds: int, clients: int = 4) -> Run:
    """Run a server and a process for each client, over TLS."""
    folder = RunFolder.create(tmp_path, "measured")
    valid = validate({"name": "measured", "rounds": rounds, "clients": clients} | dict(settings))
    asyncio.run(Deployment(valid, folder, clients).run())
    return Run(folder.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        *(pytest.param(settings, marks=pytest.mark.slow, id=name) for name, settings in ORDINARY.items()),
        pytest.param(echo(100_000), id="1e5"),
        pytest.param(echo(1_000_000), marks=pytest.mark.slow, id="1e6"),  # make test-all
    ],
)
def test_the_parts_of_a_round_add_up_to_its_wall_time(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    metrics = up(tmp_path, settings, rounds=7).metrics
    for part in PARTS:
        assert (metrics[part] >= 0).all()
    accounted = metrics[PARTS].sum(axis=1)
    np.testing.assert_allclose(metrics["seconds"] - accounted, metrics["unaccounted_s"], atol=1e-9)
    network = metrics["serialisation_s"] + metrics["propagation_s"]
    np.testing.assert_allclose(network, metrics["network_s"], atol=1e-9)
    # A busy machine can stop anybody between any two stamps, but not in most rounds.
    assert abs((metrics["unaccounted_s"] / metrics["seconds"]).median()) < 0.05


@pytest.mark.slow  # make test-all
def test_clients_on_this_machine_have_the_servers_clock(tmp_path: Path) -> None:
    calls = up(tmp_path, ORDINARY["fedavg"], rounds=7).calls
    assert (calls["clock_offset_s"].abs() <= calls["clock_error_s"] + 1e-6).all()
    assert calls["clock_error_s"].median() < calls["total_s"].median()  # both grow on a busy machine
    received = calls["total_s"] - calls["decode_s"]
    assert (calls["away_s"] + calls["queue_s"] <= calls["arrived_s"] + 1e-6).all()
    assert (calls["arrived_s"] <= calls["replied_s"]).all()
    assert (calls["replied_s"] <= received + 1e-6).all()


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    "settings", [pytest.param(ENCRYPTED, marks=pytest.mark.slow, id="hyfdca"), pytest.param(echo(1_000_000), id="1e6")]
)
def test_payload_is_in_the_frames_and_the_frames_in_what_crossed_the_sockets(
    tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    run = up(tmp_path, settings, rounds=5)
    calls = run.calls
    answered = calls[np.isfinite(calls["socket_up"])]
    assert len(answered) > 0.8 * len(calls)
    for way in ("down", "up"):
        assert (answered[f"bytes_{way}"] <= answered[f"wire_{way}"]).all()
        # The count is read once for each reply: what has arrived of the next reply is counted with the one before.
        until = answered.sort_values("sequence").groupby("client")[[f"wire_{way}", f"socket_{way}"]].cumsum()
        assert (until[f"socket_{way}"] >= until[f"wire_{way}"]).all()
        large = answered[answered[f"bytes_{way}"] >= 1_000_000]
        assert len(large) > 0 or settings is ENCRYPTED, "only the encrypted run has no large message"
        # TLS adds 22 bytes to each record, HTTP/2 9 to each frame of up to 16 KiB.
        later = large[large["round"] > 1]  # the first call of a connection bears its handshake
        assert (later[f"socket_{way}"] < 1.03 * later[f"wire_{way}"]).all()
    own = answered[answered["kind"] != "inspect"]
    for row in run.metrics.itertuples():
        assert row.socket_down == own[own["round"] == row.round]["socket_down"].sum()


def client_sockets(port: int) -> list[socket.socket]:
    """Open the clients' ends of their connections to a server of this process once more."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if copy.getpeername()[1] == port and copy.getsockname()[1] != port:
                found.append(copy)
                continue
        except (OSError, IndexError):
            pass
        copy.close()
    return found


def together(tmp_path: Path, settings: Mapping[str, Any], clients: int, on_row: Callable[[int, Row], None]) -> Run:
    """Run server and clients in this process, over TLS, so that both ends of each connection can be seen."""
    folder = RunFolder.create(tmp_path, "together")
    names = client_names(clients)
    make_all(tmp_path / "certs", ["localhost"], names)
    server = Credentials.load(tmp_path / "certs/server")

    async def life() -> None:
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def told(row: Row) -> None:
            on_row(listening.result(), row)

        valid = validate({"name": "together", "clients": clients} | dict(settings))
        folder.settings.write_text(valid.to_yaml())
        coordinator = Coordinator(valid, folder, observer=Calling(round_ended=told))
        serving = asyncio.create_task(serve(coordinator, "127.0.0.1:0", server, listening.set_result))
        address = f"localhost:{await listening}"
        credentials = {name: Credentials.load(tmp_path / "certs" / name) for name in names}
        own = ["benchmarks.echo:Echo", "benchmarks.echo:Vacuum"]
        participants = [
            Participant(
                name=name,
                server=address,
                credentials=credentials[name],
                local_data=LocalData(),
                trust_limits=TrustLimits(code=own),
            )
            for name in names
        ]
        await host(participants, on_event=lambda words: None)
        await serving

    asyncio.run(life())
    return Run(folder.path)


@linux
def test_both_ends_of_a_connection_agree(tmp_path: Path) -> None:
    seen: list[SocketBytes] = []

    def look(port: int, row: Row) -> None:
        (end,) = client_sockets(port)
        time.sleep(0.3)  # until the last acknowledgement has gone the other way
        with end:
            host = end.getsockname()[0]
            # The server's end has the client's address as its peer, and the other way round.
            theirs = Sockets().news(f"ipv4:{host}:{port}")
            assert theirs is not None
            seen.append(SocketBytes(theirs.up, theirs.down - 1))  # who connects counts the handshake as a byte

    run = together(tmp_path, echo(300_000) | {"rounds": 4}, 1, look)
    counted = run.calls[["socket_down", "socket_up"]].cumsum()
    for row, end in zip(counted.itertuples(), seen, strict=True):
        # Pings and acknowledgements of flow control may come between the two looks.
        assert row.socket_down == pytest.approx(end.down, abs=500)
        assert row.socket_up == pytest.approx(end.up, abs=500)


@linux
def test_what_crossed_connections_that_broke_is_not_forgotten(tmp_path: Path) -> None:
    broken: list[int] = []

    def cut(port: int, row: Row) -> None:
        if row["round"] in (2, 4):
            ends = client_sockets(port)
            assert len(ends) == 2
            for end in ends:
                broken.append(end.getsockname()[1])
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    run = together(tmp_path, echo(300_000) | {"rounds": 6}, 2, cut)
    assert len(set(broken)) == 4  # new connections came in place of those that broke
    calls = run.calls
    assert (calls["outcome"] == "counted").all()
    for _, rows in calls.groupby("client"):
        for way in ("down", "up"):
            # Of a message that was cut off and sent again, the first attempt may never have left this machine.
            whole = rows[f"wire_{way}"].min()
            ratio = rows[f"socket_{way}"] / rows[f"wire_{way}"]
            assert (rows[f"socket_{way}"] > whole).all()
            assert ratio.max() < 1.6  # no connection is counted twice; handshakes are there
    assert statistics.median(calls["socket_up"] / calls["wire_up"]) < 1.03

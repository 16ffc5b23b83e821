"""A hospital that joins a run later, over TLS: the run finds the optimum of everybody's data, through a kill, too."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fenchel.algorithms.feddcd.feddcd import FedDCDClient
from fenchel.common.arrays import Vector
from fenchel.common.errors import JoinRefusedError
from fenchel.common.storage.state import thaw
from fenchel.common.storage.tables import read
from fenchel.deploy.certificates.making import make_client
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, wait_until
from tests.cluster.patient import NAME

pytestmark = pytest.mark.cluster

L2 = 0.3
FEATURES = 5
SAMPLES = (60, 90, 40, 120)
LATE = "client-003"


def settings(rounds: int, failing: str = "", **participation: Any) -> dict[str, Any]:
    return {
        "name": "late",
        "seed": 5,
        "rounds": rounds,
        "clients": 3,
        "data": {"name": "own", "classes": ["ill", "well"]},
        "objective": {"kind": "logistic", "l2": L2},
        "algorithm": {"name": NAME, "failing": failing, "solver": {"kind": "newton-cg", "stop": {"gradient": 1e-12}}},
        "participation": {"late_joiners": "admit", "sampler": {"kind": "fixed", "size": 3}, **participation},
        "evaluation": {"every": 1000},
    }


def samples(client: int, features: int = FEATURES) -> tuple[np.ndarray, np.ndarray]:
    """Each hospital's patients are of another kind."""
    chance = np.random.default_rng(client)
    values = chance.standard_normal((SAMPLES[client], features)) + chance.standard_normal(features)
    slope = chance.standard_normal(features)
    return values, (values @ slope + chance.standard_normal(len(values)) > 0).astype(int)


def pooled_optimum() -> Vector:
    """The minimiser of the mean logistic loss over all four files plus the ridge, by SciPy."""
    parts = [samples(client) for client in range(4)]
    x, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    signs = 2.0 * y - 1

    def objective(w: Vector) -> tuple[float, Vector]:
        margins = signs * (x @ w)
        slopes = -signs / (1 + np.exp(margins))
        value = np.logaddexp(0, -margins).mean() + L2 / 2 * w @ w
        return float(value), x.T @ slopes / len(y) + L2 * w

    found = minimize(objective, np.zeros(FEATURES), jac=True, method="BFGS", options={"gtol": 1e-12})
    return np.asarray(found.x)


class Hospitals(Federation):
    """Clients with files of their own; the last one has a certificate, too, and is started later."""

    def start_hospital(self, client: int, features: int = FEATURES) -> None:
        name = f"client-{client:03d}"
        certificate = self.folder / "certs" / name
        if not certificate.exists():
            make_client(self.folder / "certs/authority", certificate, name)
        file = self.folder / f"{name}-{features}.csv"
        values, labels = samples(client, features)
        header = ",".join([*(f"x{column}" for column in range(features)), "outcome"])
        rows = [
            ",".join([*map(repr, row.tolist()), ("ill", "well")[label]])
            for row, label in zip(values, labels, strict=True)
        ]
        file.write_text("\n".join([header, *rows]) + "\n")
        self.clients[name] = self.process(
            name,
            *("client", f"localhost:{self.port}", "--certs", str(certificate)),
            *("--state", str(self.folder / "state" / name), "--data", str(file), "--label", "outcome"),
            *("--allow", NAME),
        )

    def begin(self) -> None:
        """Start all but the last, and wait until the run goes on."""
        self.start_server()
        for client in range(3):
            self.start_hospital(client)
        self.wait_for_round(5)

    def goes_on(self) -> None:
        """Wait for some more rounds."""
        seen = self.says("server").count("round ")
        wait_until(lambda: self.says("server").count("round ") > seen + 3, "further rounds")

    def goes_on_and_is_ended(self) -> None:
        """Wait for some more rounds, and interrupt the server."""
        self.goes_on()
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        assert self.server.wait(30) == 130


@pytest.fixture
def hospitals(federate: MakeFederation) -> Callable[..., Hospitals]:
    return lambda rounds, **sections: federate(settings(rounds, **sections), kind=Hospitals)


def fleet_sizes(run: Path) -> list[int]:
    return [int(size) for size in read(run / "metrics.parquet")["clients"].to_pylist()]


def duals(federation: Hospitals, run: Path) -> np.ndarray:
    """y_i of every client as its journal has it, shape (clients, d)."""
    found = []
    for kept in federation.kept(run):
        written = {key: value for key, value in kept.items() if not key.startswith("reply/")}
        found.append(thaw(FedDCDClient.State, written).dual)
    return np.array(found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hospital_that_joins_later_counts_as_the_others_also_after_a_kill(
    hospitals: Callable[..., Hospitals],
) -> None:
    federation = hospitals(rounds=500)
    federation.begin()
    federation.start_hospital(3, features=4)
    assert federation.clients[LATE].wait(60) == JoinRefusedError.exit_code
    said = " ".join(federation.says(LATE).split())
    assert "Traceback" not in said
    assert "has 4 columns of features, not 5 as those of earlier clients; give all files the same columns" in said
    federation.start_hospital(3)  # its file is mended
    wait_until(lambda: "4 of 4 clients ready" in federation.says("server"), "the admission")
    federation.goes_on()
    federation.kill("server")
    federation.start_server()
    run = federation.finish()
    sizes = fleet_sizes(run)
    assert sizes == sorted(sizes)
    assert sizes[0] == 3
    assert 5 < sizes.count(3) < 400  # it was admitted in the middle
    log = (run / "log.jsonl").read_text()
    assert f"client {LATE} takes part from round {sizes.count(3) + 1} on; the run now has 4 clients" in log
    found = duals(federation, run)
    assert found.shape == (4, FEATURES)
    assert np.abs(found).min(axis=1).max() > 1e-3
    assert np.abs(found.sum(axis=0)).max() < 1e-13
    with np.load(run / "model.npz") as archive:
        np.testing.assert_allclose(archive["model"], pooled_optimum(), rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_that_fails_when_it_is_taken_in_hears_why_and_the_run_goes_on(hospitals: Callable[..., Hospitals]) -> None:
    federation = hospitals(rounds=10_000, failing=LATE)
    federation.begin()
    federation.start_hospital(3)
    assert federation.clients[LATE].wait(60) == JoinRefusedError.exit_code
    said = " ".join(federation.says(LATE).split())
    assert "Traceback" not in said
    assert "it could not be admitted to the run" in said
    assert "its disk is full" in said
    federation.goes_on_and_is_ended()
    assert set(fleet_sizes(federation.run_folder)) == {3}

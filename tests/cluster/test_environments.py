"""Real processes report what they compute with."""

from __future__ import annotations

import json
import platform

import pytest

import fenchel
from fenchel.common.environment import SERVER, Environment
from tests.cluster.conftest import MakeFederation

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the names of kernels are those of x86-64"),
    pytest.mark.skipif("openblas" not in Environment.current().blas, reason="not computed by OpenBLAS"),
]

SETTINGS = {
    "rounds": 2,
    "clients": 2,
    "data": {"name": "digits", "samples": 120, "scale": "unit-interval"},
    "objective": {"kind": "softmax"},
    "algorithm": {"name": "fedavg"},
}


@pytest.mark.slow
def test_a_client_with_another_kernel_is_recorded_and_the_log_of_the_run_names_it(federate: MakeFederation) -> None:
    federation = federate(SETTINGS)
    federation.environment = {"OPENBLAS_CORETYPE": "Nehalem"}
    federation.start_server()
    federation.start_client("client-000")
    federation.environment = {"OPENBLAS_CORETYPE": "Prescott"}
    federation.start_client("client-001")
    run = fenchel.Run(federation.finish())
    latest = run.environments.latest
    assert list(latest) == [SERVER, "client-000", "client-001"]
    assert latest[SERVER] == latest["client-000"]
    assert latest["client-001"].kernel != latest["client-000"].kernel
    assert {each.threads for each in latest.values()} == {1}, "sums must not depend on a machine's cores"
    entries = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    (warning,) = [each["message"] for each in entries if each["level"] == "warning"]
    assert f"{latest['client-001'].kernel} (client-001)" in warning

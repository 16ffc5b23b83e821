"""FedDCD and AccFedDCD over gRPC: twenty client processes, each with its own file, need as many rounds as is known.

Digits, two classes a client, six clients a round (docs/specifications/feddcd.md, section 8;
docs/algorithms/feddcd.md). Rounds are counted in the same run in one process, whose models have the same bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.algorithms.mlr import Problem, train, two_class_digits
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation

pytestmark = pytest.mark.cluster

OVER_GRPC = 15  # rounds
SIX = {"sampler": {"kind": "fixed", "size": 6}}


class Hospitals(Federation):
    """Every client brings its own file."""

    def client_words(self, name: str) -> list[str]:
        return [*super().client_words(name), "--data", str(self.folder / f"{name}.npz")]


def over_grpc(
    problem: Problem, federate: MakeFederation, algorithm: dict[str, Any], rounds: int
) -> np.ndarray[Any, Any]:
    """Return the model after some rounds, of a server and clients in processes of their own."""
    settings = {
        "name": "hospitals",
        "rounds": rounds,
        "clients": problem.clients,
        "data": {"name": "own", "classes": list(range(10))},
        "objective": {"kind": "softmax", "l2": problem.l2},
        "algorithm": {"weighting": "uniform", **algorithm},
        "participation": SIX,
        "evaluation": {"server": False, "clients": False},
        "checkpoint": {"every": rounds},
    }
    federation = federate(settings, kind=Hospitals)
    for name, shard in zip(federation.names, problem.shards, strict=True):
        np.savez(federation.folder / f"{name}.npz", X=np.asarray(shard.features), y=shard.labels)
    federation.start()
    run = federation.finish(240)
    with np.load(run / "model.npz") as archive:
        model: np.ndarray[Any, Any] = archive["model"]
    return model


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("algorithm", "known"),
    [({"name": "feddcd"}, {1e-2: 110}), ({"name": "acc-feddcd"}, {1e-2: 27, 1e-4: 85})],
    ids=["feddcd", "acc-feddcd"],
)
def test_hospitals_need_as_many_rounds_as_known(
    algorithm: dict[str, Any], known: dict[float, int], federate: MakeFederation, tmp_path: Path
) -> None:
    problem, rounds = two_class_digits(), max(known.values())
    inside = train(
        problem,
        tmp_path,
        {"weighting": "uniform", **algorithm},
        rounds=rounds + rounds // 20,
        participation=SIX,
        checkpoint={"every": rounds},
    )
    gaps = [problem.gap(model) for model in inside.models]
    for gap, count in known.items():
        reached = next(t for t, each in enumerate(gaps, 1) if each <= gap)
        assert reached == pytest.approx(count, rel=0.05), f"to {gap:g}"
    model = over_grpc(problem, federate, algorithm, OVER_GRPC)
    np.testing.assert_array_equal(model, inside.models[OVER_GRPC - 1])
